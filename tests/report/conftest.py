from tests.support.runs import history, plant, store

__all__ = ["history", "plant", "store"]
