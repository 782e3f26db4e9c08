"""Training, from a configuration to a searchable retriever in one folder, as a list of stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..artifacts.run_folder import Run
from ..engine.devices import Devices, one_voice, start
from ..errors import OutputError, TemperaError
from ..forms.data_form import source_of
from ..io.atomic import staged
from ..io.documents import JsonLines
from ..io.freed import give_back
from ..options import yaml_options as configuration
from ..options.build import Config, build
from ..options.yaml_options import Options
from ..parallel.distributed import Group
from ..tables.tables import ending
from ..task.verdict import Verdict
from .alarms import within_memory
from .fit import Fitted, fit
from .judge import judge
from .prepare import Prepared, prepare
from .publish import publish
from .race import choose_by_race
from .refit import Refit
from .resume import Checkpoints
from .time_limit import TIME_LIMIT, limit_chosen, limit_of, within
from .trackers import tracked


@dataclass
class RunUnderWay:
    """A run between two of its stages.

    Args:
        config: all options of the run.
        devices: of the training.
        folder: of the run's files.
        log: of the run.
        vectors: folder for the vectors of guides, which neighbouring runs share.
        checkpoints: of the run.
        free: names of the options for a race to choose.
    """

    config: Config
    devices: Devices
    folder: Path
    log: JsonLines
    vectors: Path
    checkpoints: Checkpoints
    free: Sequence[str]
    read: Prepared = field(init=False)  # as the data were read
    limit: Mapping[str, Any] | None = None  # the steps that train.max_time allows
    prepared: Prepared = field(init=False)  # with the options that were chosen
    refit: Refit = field(init=False)
    before: Verdict | None = None  # of the untrained tower, on the main process
    fitted: Fitted = field(init=False)
    judged: Prepared = field(init=False)  # whose tower is judged on the test
    after: Verdict | None = None  # of the trained tower, on the main process
    served: Prepared = field(init=False)  # whose tower is saved

    def take(self, stages: Sequence[Callable[[RunUnderWay], None]]) -> None:
        """Take the stages in their order.

        The training is kept if a later stage fails, unless the disk takes nothing. Memory that a
        stage has freed is given back to the system.
        """
        for stage in stages:
            try:
                stage(self)
                give_back()
            except BaseException as error:
                alone = self.devices.group.size == 1
                full = isinstance(error, OSError | OutputError)
                if hasattr(self, "fitted") and alone and not full:
                    with suppress(TemperaError):
                        self.fitted.keep()
                raise

    @property
    def is_main(self) -> bool:
        """True on the process that judges and writes for all."""
        return self.devices.group.main


def read(run: RunUnderWay) -> None:
    """Read, divide and tokenise the data, and build the tower."""
    run.read = prepare(
        run.config,
        run.devices,
        run.folder,
        run.log,
        run.vectors,
    )


def measure_limit(run: RunUnderWay) -> None:
    """Measure the number of steps within `train.max_time`, of which the race takes a share."""
    known = run.checkpoints.record(TIME_LIMIT)
    run.limit = limit_of(run.read, known, run.checkpoints)


def choose(run: RunUnderWay) -> None:
    """Choose the open options by a race on validation."""
    known = run.checkpoints.record("recipe")
    run.prepared = choose_by_race(within(run.read, run.limit), run.free, known, run.checkpoints)


def limit(run: RunUnderWay) -> None:
    """Limit the steps of the chosen tower to `train.max_time`."""
    is_known = run.checkpoints.record(TIME_LIMIT) is not None
    run.prepared = limit_chosen(run.prepared, run.read, run.limit, is_known)


def judge_untrained(run: RunUnderWay) -> None:
    """Judge the tower on the test before its training."""
    run.refit = Refit(run.prepared)
    if run.is_main:
        run.before = judge(run.prepared)


def fit_tower(run: RunUnderWay) -> None:
    """Train the tower, with looks at validation and checkpoints on the way."""
    run.fitted = fit(run.prepared, run.checkpoints)


def refit_on_validation(run: RunUnderWay) -> None:
    """Train again, also on validation, if `train.refit` says so."""
    run.judged = run.refit("validation", run.prepared, run.fitted)


def judge_trained(run: RunUnderWay) -> None:
    """Judge the trained tower on the test."""
    if run.is_main:
        run.after = judge(run.judged)


def refit_on_test(run: RunUnderWay) -> None:
    """Train again, also on all held-out data, if `train.refit` says so."""
    run.served = run.refit("test", run.judged, run.fitted)


def publish_folder(run: RunUnderWay) -> None:
    """Write the model, its index, the metrics and the report into the run's folder."""
    if run.is_main:
        publish(run.judged, run.fitted, run.before, run.after, run.served)


STAGES = (
    read,
    measure_limit,
    choose,
    limit,
    judge_untrained,
    fit_tower,
    refit_on_validation,
    judge_trained,
    refit_on_test,
    publish_folder,
)


def train(
    config: Options | Mapping[str, Any] | str | Path | None = None,
    output: str | Path | None = None,
    overrides: Sequence[str] = (),
    overwrite: bool = False,
    data: Any = None,
    free: Sequence[str] = (),
) -> Run:
    """Train with the options as given, and leave a run folder; `tempera.train` first fills in the
    open options.

    Args:
        config: options as a mapping, a YAML file, a file or folder of data, or None for the default
            job: search in the installed Python's code.
        output: the folder to make, with checkpoints beside the folder until the run is complete;
            None is runs/ and the name of the file, or else runs/first.
        overrides: dotted.key=value, as on the command line.
        overwrite: replace a run that `output` holds, once the new run is complete. An interrupted
            run is resumed, and forgotten if its configuration is another.
        data: rows to train on, in place of a source.
        free: names of the options for a race on validation to choose, after the data are read.

    Raises:
        TemperaError: wrong options, no data, or no permission to write the output.
    """
    resolved = _resolved(config, overrides, data)
    if output is None:
        output = default_output(
            config if isinstance(config, str | Path) else resolved.resolved["data"].get("path")
        )
    output = Path(output)
    options = resolved.train
    devices = start(options.mixed_precision, options.device, options.ddp_timeout)
    resolved.train.check(devices)
    place, training = output.resolve(), resolved.train
    settled = {**resolved.resolved["train"], "mixed_precision": devices.mixed_precision}
    checkpoints = Checkpoints(
        place.parent / f"{place.name}.checkpoints",
        {**resolved.resolved, "train": settled},
        training.save_total_limit,
        training.save_steps,
    )
    folders = (
        staged(output, overwrite, resolved.read, unfinished=checkpoints.unfinished)
        if devices.group.main
        else TemporaryDirectory()
    )
    with (
        one_voice(devices.group),
        _agreed(folders, devices.group) as folder,
        within_memory(checkpoints),
    ):
        checkpoints.begin(overwrite)
        names = training.report_to if devices.group.main else ()
        with (
            tracked(
                names, place, resolved.resolved, goes_on=checkpoints.latest is not None
            ) as tell,
            JsonLines(Path(folder) / "log.jsonl", tell) as log,
        ):
            run = RunUnderWay(
                resolved, devices, Path(folder), log, place.parent / "vectors", checkpoints, free
            )
            run.take(STAGES)
    devices.group.wait()
    checkpoints.forget()
    return Run(output, must_exist=devices.group.main)


@contextmanager
def _agreed(folders: AbstractContextManager[Path | str], group: Group) -> Iterator[Path | str]:
    """Enter a folder for each process; where a folder is refused, the other processes leave without
    a word."""
    with ExitStack() as stack:
        folder = None
        try:
            folder = stack.enter_context(folders)
        finally:
            refused = group.any(folder is None)
        if refused:
            raise SystemExit(2)
        yield folder


def _resolved(
    config: Options | Mapping[str, Any] | str | Path | None, overrides: Sequence[str], data: Any
) -> Config:
    """Check the options, and hand rows of Python to the section of their description."""
    options = with_rows(configuration.of(config, overrides), data)
    resolved = build(options)
    return replace(resolved, data=resolved.world.hand(resolved.data, data))


def with_rows(options: Options, data: Any) -> Options:
    """Return options whose `data:` section names the source of rows of Python; the same options
    without rows."""
    if data is None:
        return options
    return Options(
        {**options.values, "data": source_of(data, options.values.get("data") or {})},
        options.places,
    )


def default_output(path: str | Path | None, kind: str = "") -> Path:
    """Return runs/ and the name of a file without its extension or of a folder, or runs/first
    without a file.

    >>> default_output("data/pairs.csv", "sweep").name
    'pairs-sweep'
    """
    place = Path(path or "/").resolve()
    known = 0 if place.is_dir() else len(ending(place))
    name = place.name[: len(place.name) - known] or "first"
    return Path("runs", f"{name}-{kind}" if kind else name)
