"""A dataset of three scenes with four episodes each. The goal of an episode is its number plus one."""

import random
from types import SimpleNamespace


class LineDataset:
    def __init__(self, config=None):
        scenes = [] if config is None else config.content_scenes
        if "*" in scenes:
            scenes = self.get_scenes_to_load(config)
        self.episodes = [
            SimpleNamespace(scene_id=f"{config.split}_{scene}", episode_id=str(number))
            for scene in scenes
            for number in range(4)
        ]

    @classmethod
    def get_scenes_to_load(cls, config):
        return ["a", "b", "c"]

    def get_episode_iterator(self, shuffle=False, seed=None):
        return EpisodeIterator(self.episodes, shuffle=shuffle, seed=seed)


class EpisodeIterator:
    """Cycles. It seeds Python's global state, and shuffles the list that it is given."""

    def __init__(self, episodes, shuffle, seed):
        if seed:
            random.seed(seed)
        self.episodes = episodes
        if shuffle:
            random.shuffle(self.episodes)
        self._iterator = iter(self.episodes)

    def __next__(self):
        found = next(self._iterator, None)
        if found is None:
            self._iterator = iter(self.episodes)
            found = next(self._iterator)
        return found


def make_dataset(id_dataset, **kwargs):
    assert id_dataset == "Line-v1", f"Could not find dataset {id_dataset}"
    return LineDataset(**kwargs)
