"""BibTeX of the methods in an objective."""

from __future__ import annotations

from ..core.corrections import Hardness, LogQ
from ..core.masks import Guided
from ..core.objective import Objective

_INFO_NCE = """@misc{oord2018representation,
    title={Representation Learning with Contrastive Predictive Coding},
    author={Aaron van den Oord and Yazhe Li and Oriol Vinyals},
    year={2018},
    eprint={1807.03748},
    archivePrefix={arXiv}
}"""
_CACHE = """@misc{gao2021scaling,
    title={Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup},
    author={Luyu Gao and Yunyi Zhang and Jiawei Han and Jamie Callan},
    year={2021},
    eprint={2101.06983},
    archivePrefix={arXiv}
}"""
_MATRYOSHKA = """@misc{kusupati2022matryoshka,
    title={Matryoshka Representation Learning},
    author={Aditya Kusupati and others},
    year={2022},
    eprint={2205.13147},
    archivePrefix={arXiv}
}"""
_OF_PARTS = {
    Guided: """@misc{solatorio2024gistembed,
    title={GISTEmbed: Guided In-sample Selection of Training Negatives for Text Embedding Fine-tuning},
    author={Aivin V. Solatorio},
    year={2024},
    eprint={2402.16829},
    archivePrefix={arXiv}
}""",
    Hardness: """@misc{lan2025llave,
    title={LLaVE: Large Language and Vision Embedding Models with Hardness-Weighted Contrastive Learning},
    author={Zhibin Lan and others},
    year={2025},
    eprint={2503.04812},
    archivePrefix={arXiv}
}""",
    LogQ: """@inproceedings{yi2019sampling,
    title={Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations},
    author={Xinyang Yi and others},
    booktitle={RecSys},
    year={2019}
}""",
}


_TEACHER = """@misc{hinton2015distilling,
    title={Distilling the Knowledge in a Neural Network},
    author={Geoffrey Hinton and Oriol Vinyals and Jeff Dean},
    year={2015},
    eprint={1503.02531},
    archivePrefix={arXiv}
}"""


def citations(objective: Objective, matryoshka: bool = False) -> str:
    """Return the BibTeX of the softmax, of gradient caching, and of each part with a paper."""
    parts = [
        text for kind, text in _OF_PARTS.items() if any(type(p) is kind for p in _parts(objective))
    ]
    parts += [] if objective.teacher is None else [_TEACHER]
    return "\n\n".join([_INFO_NCE, _CACHE, *([_MATRYOSHKA] if matryoshka else []), *parts])


def _parts(objective: Objective) -> list[object]:
    return [*objective.corrections, *objective.masks]
