"""The data of a Trainer: accepted sources, order, and which process gets which batch."""

import pytest

import hookline as hl
from hookline._engine.errors import OptionError
from hookline.testing import RecordingCallback

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402
from torch.utils.data import (  # noqa: E402
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)

from hookline.loops.batches import Batches  # noqa: E402


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


class Numbers(Dataset):
    """Samples that say which they are."""

    def __init__(self, count):
        self.count = count
        self.loaded = []

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        self.loaded.append(int(index))
        return torch.tensor([float(index)])


class Stream(IterableDataset):
    """Samples without a length."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return (torch.tensor([float(number)]) for number in range(self.count))


class Marked(Numbers):
    """Samples that say whether a worker loaded them: then they are larger by ten."""

    def __getitem__(self, index):
        return super().__getitem__(index) + (0 if get_worker_info() is None else 10)


class Noisy(Numbers):
    """Samples with something drawn at random in them."""

    def __getitem__(self, index):
        return torch.tensor([float(index), torch.rand(()).item()])


class Columns:
    """What a Hugging Face data set looks like."""

    column_names = ("x",)

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return {"x": float(index)}


def numbers(batch):
    """The samples in a batch, whatever it is made of."""
    batch = batch["x"] if isinstance(batch, dict) else batch
    return [int(number) for number in torch.as_tensor(batch).flatten().tolist()]


def trained_on(data, *, epochs=1, **settings):
    """The samples of each batch that a Trainer trains on."""
    recording = RecordingCallback()
    config = hl.TrainerConfig(epochs=epochs, device="cpu", output_dir=None, summary=False, strict=True, **settings)

    def step(model, batch):
        return model(torch.tensor([[float(numbers(batch)[0])]])).mean()

    trainer = hl.Trainer(torch.nn.Linear(1, 1), data, config=config, training_step=step, callbacks=[recording])
    trainer.fit()
    events = [event for event in recording.events if event.moment == "on_train_batch_start"]
    return [numbers(event.arguments[0]) for event in events]


# What can be given


@pytest.mark.parametrize("data", [Numbers(5), Columns(5), Stream(5)], ids=lambda data: type(data).__name__)
def test_batches_of_a_data_set_are_made_here(data):
    assert trained_on(data, batch_size=2, shuffle=False) == [[0, 1], [2, 3], [4]]


def test_batches_of_a_data_set_are_reshuffled_in_each_epoch():
    drawn = trained_on(Numbers(6), batch_size=3, epochs=2)
    first, second = drawn[0] + drawn[1], drawn[2] + drawn[3]
    assert sorted(first) == sorted(second) == list(range(6))
    assert first != second
    assert drawn == trained_on(Numbers(6), batch_size=3, epochs=2)
    assert drawn != trained_on(Numbers(6), batch_size=3, epochs=2, seed=1)


def test_batches_of_a_stream_come_in_its_order_whatever_the_settings_say():
    assert trained_on(Stream(4), batch_size=2, shuffle=True, epochs=2) == [[0, 1], [2, 3]] * 2


def test_batches_of_a_data_set_may_be_loaded_by_workers():
    assert trained_on(Marked(5), batch_size=2, shuffle=False, workers=1) == [[10, 11], [12, 13], [14]]


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_of_a_loader_are_its_own(workers):
    loader = DataLoader(Numbers(5), batch_size=2, drop_last=True, num_workers=workers)
    assert trained_on(loader, batch_size=99, epochs=2) == [[0, 1], [2, 3]] * 2


@pytest.mark.parametrize("own_generator", [False, True])
def test_batches_of_a_shuffling_loader_come_in_the_order_of_a_plain_loop(own_generator):
    def loader():
        generator = torch.Generator().manual_seed(3) if own_generator else None
        return DataLoader(Numbers(7), batch_size=2, shuffle=True, generator=generator)

    torch.manual_seed(11)
    plain = loader()
    expected = [numbers(batch) for _ in range(2) for batch in plain]
    assert trained_on(loader(), epochs=2, seed=11) == expected


def test_batches_of_a_list_are_its_items():
    assert trained_on([torch.tensor([3.0]), torch.tensor([1.0, 2.0])], epochs=2) == [[3], [1, 2]] * 2


def test_batches_of_something_iterable_need_no_length():
    class Again:
        def __iter__(self):
            return iter([torch.tensor([1.0]), torch.tensor([2.0])])

    assert trained_on(Again(), epochs=2) == [[1], [2]] * 2
    assert trained_on(Again(), epochs=None, max_steps=3) == [[1], [2], [1]]


def test_batches_of_a_generator_last_for_one_epoch():
    assert trained_on(torch.tensor([float(number)]) for number in range(3)) == [[0], [1], [2]]


def test_batches_of_a_generator_are_used_up_after_one_epoch():
    with pytest.raises(OptionError, match="no batch in epoch 2. It is an iterator.*give a list or a loader"):
        trained_on((torch.tensor([1.0]) for _ in range(3)), epochs=2)


def test_batches_of_a_generator_for_validations_are_used_up_after_one():
    batches = [(torch.ones(2, 1), torch.ones(2, 1))]
    config = hl.TrainerConfig(epochs=2, device="cpu", output_dir=None, summary=False)
    val = (batch for batch in batches)
    trainer = hl.Trainer(torch.nn.Linear(1, 1), batches, val, config=config, loss=functional.mse_loss)
    with pytest.raises(OptionError, match="val_data gave no batch. It is an iterator.*give a list or a loader"):
        trainer.fit()


def test_batches_of_an_infinite_stream_are_drawn_no_further_than_needed():
    drawn = []

    def endless():
        number = 0
        while True:
            drawn.append(number)
            yield torch.tensor([float(number)])
            number += 1

    assert trained_on(endless(), epochs=None, max_steps=2, accumulation=2) == [[0], [1], [2], [3]]
    assert drawn == [0, 1, 2, 3]


def test_batches_of_a_weighted_sampler_are_drawn_by_it():
    sampler = WeightedRandomSampler([0.0, 1.0, 0.0], num_samples=4)
    assert trained_on(DataLoader(Numbers(3), batch_size=2, sampler=sampler)) == [[1, 1], [1, 1]]


@pytest.mark.parametrize("part", ["dataset", "sampler", "batch_sampler"])
def test_batches_tell_the_parts_of_a_loader_which_epoch_begins(part):
    reported = []

    class Told:
        def set_epoch(self, epoch):
            reported.append(epoch)

    class ToldNumbers(Told, Numbers):
        pass

    class Sampler(Told):
        def __iter__(self):
            return iter([0, 1])

        def __len__(self):
            return 2

    class BatchSampler(Sampler):
        def __iter__(self):
            return iter([[0], [1]])

    loader = {
        "dataset": lambda: DataLoader(ToldNumbers(2)),
        "sampler": lambda: DataLoader(Numbers(2), sampler=Sampler()),
        "batch_sampler": lambda: DataLoader(Numbers(2), batch_sampler=BatchSampler()),
    }[part]()
    trained_on(loader, epochs=3)
    assert reported == [0, 1, 2]


@pytest.mark.parametrize(("epochs", "orders"), [(1, 1), (3, 3)])
def test_batches_of_a_distributed_sampler_are_reshuffled_in_each_epoch(epochs, orders):
    data = Numbers(16)
    sampler = DistributedSampler(data, num_replicas=2, rank=0, shuffle=True)
    drawn = trained_on(DataLoader(data, batch_size=8, sampler=sampler), epochs=epochs)
    assert len({tuple(batch) for batch in drawn}) == orders


# Their number


@pytest.mark.parametrize(
    ("data", "length"),
    [
        (Numbers(5), 3),
        (Columns(4), 2),
        (Stream(5), None),
        ([1, 2, 3], 3),
        (range(4), 4),
        (iter([1, 2]), None),
        (DataLoader(Numbers(5), batch_size=4, drop_last=True), 1),
        (DataLoader(Stream(5)), None),
    ],
    ids=["data set", "columns", "stream", "list", "range", "iterator", "loader", "loader of a stream"],
)
def test_batches_length_is_that_of_an_epoch_where_it_is_known(data, length):
    assert Batches(data, what="train_data", batch_size=2).length == length


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "train_data is empty: a list of length 0 gives no batch."),
        (TensorDataset(torch.ones(0, 3)), "train_data is empty: a TensorDataset of length 0 has no samples."),
        (Columns(0), "train_data is empty: a Columns of length 0 has no samples."),
        (DataLoader(Numbers(2), batch_size=4, drop_last=True), "train_data is empty: a DataLoader gives no batch."),
    ],
    ids=["list", "data set", "columns", "loader"],
)
def test_batches_that_are_none_are_an_error(data, message):
    with pytest.raises(OptionError) as caught:
        Batches(data, what="train_data")
    assert str(caught.value) == message


@pytest.mark.parametrize("data", [3, None, "train.jsonl"])
def test_batches_of_something_else_are_an_error(data):
    with pytest.raises(OptionError, match="val_data=.*give a data set.*a DataLoader, or an iterable of batches"):
        Batches(data, what="val_data")


def test_batches_of_a_data_set_without_a_length_are_an_error():
    class Endless(Dataset):
        def __getitem__(self, index):
            return index

    with pytest.raises(OptionError, match=r"train_data=.*Endless.*has no length: give it __len__\(\)"):
        Batches(Endless(), what="train_data")


@pytest.mark.parametrize("data", [Stream(0), iter([])], ids=["stream", "iterator"])
def test_batches_that_turn_out_to_be_none_are_an_error(data):
    with pytest.raises(OptionError, match=r"train_data gave no batch in epoch 1\.$"):
        trained_on(data)


# Going on in the middle of an epoch


def make(kind, workers=0):
    if kind == "list":
        return Batches([torch.tensor([float(number)]) for number in range(5)], what="train_data")
    if kind == "stream":
        return Batches(Stream(10), what="train_data", batch_size=2)
    return Batches(Numbers(10), what="train_data", batch_size=2, shuffle=True, workers=workers)


@pytest.mark.parametrize("kind", ["list", "stream", "data set"])
@pytest.mark.parametrize("done", [0, 1, 4, 5, 7])
def test_batches_after_those_done_are_the_rest_of_the_same_order(kind, done):
    torch.manual_seed(4)
    whole = [numbers(batch) for batch in make(kind).epoch(0)]
    torch.manual_seed(4)
    assert [numbers(batch) for batch in make(kind).epoch(0, done=done)] == whole[done:]
    assert len(whole) == 5


class Negated(DataLoader):
    """A loader that makes something else of its batches."""

    def __iter__(self):
        return (-batch for batch in super().__iter__())


@pytest.mark.parametrize(("done", "world_size"), [(2, 1), (0, 2)])
def test_batches_of_a_loader_with_a_way_of_its_own_are_always_made_by_it(done, world_size):
    batches = Batches(Negated(Numbers(8), batch_size=2), what="train_data", world_size=world_size)
    given = [numbers(batch) for batch in batches.epoch(0, done=done)]
    assert given == ([[-4, -5], [-6, -7]] if done else [[0, -1], [-4, -5]])


def test_batches_that_are_done_are_not_loaded_again():
    data = Numbers(10)
    list(Batches(data, what="train_data", batch_size=2).epoch(0, done=4))
    assert data.loaded == [8, 9]


def test_batches_after_those_done_have_the_same_random_parts_from_workers():
    def batches():
        torch.manual_seed(4)
        return Batches(Noisy(6), what="train_data", batch_size=2, shuffle=True, workers=1)

    whole, (rest,) = list(batches().epoch(0)), list(batches().epoch(0, done=2))
    assert torch.equal(rest, whole[2])


def test_batches_state_is_that_of_the_loaders_own_generator():
    def loader():
        return DataLoader(Numbers(6), shuffle=True, generator=torch.Generator().manual_seed(1))

    batches = Batches(loader(), what="train_data")
    list(batches.epoch(0))
    state = batches.state()
    second = [numbers(batch) for batch in batches.epoch(1)]
    again = Batches(loader(), what="train_data")
    again.load_state(state)
    assert [numbers(batch) for batch in again.epoch(1)] == second
    assert len(state) == 1


# The shares of several processes


def shares(count, world_size, *, last_round="left out", stream=False):
    """What each process gets of batches of one sample, and which of it counts."""
    gotten = []
    for rank in range(world_size):
        data = Stream(count) if stream else Numbers(count)
        batches = Batches(data, what="data", rank=rank, world_size=world_size, last_round=last_round)
        gotten.append([(*numbers(batch), batches.counts) for batch in batches.epoch(0)])
        assert stream or len(gotten[-1]) == batches.length
    return gotten


@pytest.mark.parametrize("stream", [False, True])
def test_batches_are_shared_out_in_turns_and_a_last_round_is_left_out(stream):
    assert shares(7, 3, stream=stream) == [
        [(0, True), (3, True)],
        [(1, True), (4, True)],
        [(2, True), (5, True)],
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_batches_of_a_validation_are_filled_up_by_some_that_do_not_count(stream):
    assert shares(4, 3, last_round="filled up", stream=stream) == [
        [(0, True), (3, True)],
        [(1, True), (3, False)],
        [(2, True), (3, False)],
    ]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 6])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_batches_that_count_in_a_validation_are_each_sample_once(count, world_size):
    gotten = shares(count, world_size, last_round="filled up")
    assert sorted(number for own in gotten for number, counts in own if counts) == list(range(count))
    assert len({len(own) for own in gotten}) == 1


def test_batches_that_do_not_count_are_known_one_by_one_whatever_workers_load_ahead():
    batches = Batches(Numbers(3), what="val_data", rank=1, world_size=2, last_round="filled up", workers=1)
    assert [(*numbers(batch), batches.counts) for batch in batches.epoch(0)] == [(1, True), (2, False)]


def test_batches_too_few_for_all_processes_are_an_error():
    with pytest.raises(OptionError, match="train_data is empty: .* gives no batch for each of 3 processes"):
        Batches([1, 2], what="train_data", world_size=3)


def test_batches_of_a_distributed_sampler_are_not_shared_out_again():
    data = Numbers(8)
    gotten = []
    for rank in range(2):
        loader = DataLoader(data, sampler=DistributedSampler(data, num_replicas=2, rank=rank, shuffle=False))
        batches = Batches(loader, what="train_data", rank=rank, world_size=2)
        gotten.append([number for batch in batches.epoch(0) for number in numbers(batch)])
    assert gotten == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_batches_of_a_process_are_the_only_ones_it_loads():
    data = Numbers(9)
    list(Batches(data, what="train_data", rank=1, world_size=3).epoch(0))
    assert data.loaded == [1, 4, 7]
