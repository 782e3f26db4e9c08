"""A server of trials whose runs leave no pictures, which take longer than the runs."""

import tempera.leaving
from tempera.tuning.worker import load, serve, trial

if __name__ == "__main__":
    tempera.leaving.render = lambda report: ""
    load()
    serve(trial)
