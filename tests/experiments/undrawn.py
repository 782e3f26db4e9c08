"""A server of trials whose runs leave no pictures, which take longer than the runs."""

import tempera.run.publish
from tempera.experiments.worker import load, serve, trial

if __name__ == "__main__":
    tempera.run.publish.render = lambda report: ""
    load()
    serve(trial)
