"""A worker that is killed in its first run of temperature 0.5, of all the workers that know of the
same mark."""

import os
import signal
from pathlib import Path

from tempera.experiments.one_run import Trainings
from tempera.experiments.worker import serve


class KilledOnce(Trainings):
    def __call__(self, job, report):
        if job["record"]["params"] == {"objective.temperature": 0.5}:
            mark = Path(os.environ["TEMPERA_TEST_MARK"])
            if not mark.exists():
                mark.touch()
                print("about to be killed", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(job, report)


if __name__ == "__main__":
    serve(KilledOnce())
