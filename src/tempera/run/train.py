"""Training, from a configuration to a searchable retriever in one folder: prepare, fit, judge,
publish."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..artifacts.run_folder import Run
from ..engine.devices import Devices, one_voice, start
from ..errors import OutputError, TemperaError
from ..io.atomic import staged
from ..io.documents import JsonLines
from ..options import yaml_options as configuration
from ..options.build import Config, build
from ..options.forms import source_of
from ..options.yaml_options import Options
from ..parallel.distributed import Group
from ..recommend.read.interactions import Interactions
from ..tables.tables import ending
from ..text.read.sources import Given
from .alarms import within_memory
from .fit import fit
from .judge import judge
from .prepare import Prepared, prepare
from .publish import publish
from .refit import Refit
from .resume import Checkpoints
from .time_limit import TIME_LIMIT, limited
from .trackers import tracked

Settle = Callable[..., Prepared]


def train(
    config: Options | Mapping[str, Any] | str | Path | None = None,
    output: str | Path | None = None,
    overrides: Sequence[str] = (),
    overwrite: bool = False,
    data: Any = None,
    settle: Settle | None = None,
) -> Run:
    """Train with the options as they are, and leave a run folder; `tempera.train` first chooses
    those that are left open.

    Args:
        config: options as a mapping, a YAML file, a file or folder of data, or None for the default
            job: search in the installed Python's code.
        output: the folder to make, beside which checkpoints are kept until it is complete; None is
            runs/ and the name of the file, or else runs/first.
        overrides: dotted.key=value, as on the command line.
        overwrite: replace a run that `output` holds, once the new one is complete. One that was
            interrupted is resumed; of another configuration, it is forgotten.
        data: rows to train on, in place of a source.
        settle: chooses options of a run whose data have been read; it is given what an earlier
            process of the same run has recorded of its choice.

    Raises:
        TemperaError: wrong options, no data, or an output that cannot be written.
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
            _run(
                resolved, devices, Path(folder), log, place.parent / "vectors", checkpoints, settle
            )
    devices.group.wait()
    checkpoints.forget()
    return Run(output, must_exist=devices.group.main)


@contextmanager
def _agreed(folders: AbstractContextManager[Path | str], group: Group) -> Iterator[Path | str]:
    """Enter a folder for each process; where one is refused, the other processes leave without a
    word."""
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
    """Check the options, and hand rows of Python to the section that describes them."""
    options = with_rows(configuration.of(config, overrides), data)
    resolved = build(options)
    if isinstance(resolved.data, Given) or (
        data is not None and isinstance(resolved.data, Interactions)
    ):
        return replace(resolved, data=resolved.data.hand(data))
    return resolved


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


def _run(
    config: Config,
    devices: Devices,
    folder: Path,
    log: JsonLines,
    vectors: Path,
    checkpoints: Checkpoints,
    settle: Settle | None,
) -> None:
    """Prepare, settle within the limit of time, fit, train again, judge, publish. One process
    judges and writes for all."""
    prepared = prepare(config, devices, folder, log, vectors)
    choose = (
        None
        if settle is None
        else partial(settle, known=checkpoints.record("recipe"), checkpoints=checkpoints)
    )
    prepared = limited(prepared, checkpoints.record(TIME_LIMIT), choose, checkpoints)
    main, again = devices.group.main, Refit(prepared)
    before = judge(prepared) if main else None
    fitted = fit(prepared, checkpoints)
    try:
        judged = again("validation", prepared, fitted)
        if main:
            with prepared.phases("embed"):
                judged.task.held_out.embed()
            after = judge(judged)
        served = again("test", judged, fitted)
        if main:
            publish(judged, fitted, before, after, served)
    except (
        BaseException
    ) as error:  # the training is not lost with what follows it, unless the disk takes nothing
        if devices.group.size == 1 and not isinstance(error, OSError | OutputError):
            with suppress(TemperaError):
                fitted.keep()
        raise
