"""The workload in pfl: SimulatedBackend with FedAvg or FedProx and the Gaussian mechanism, its noise drawn once.

pfl clips the update, not the weights; the arithmetic is the same. Started by torchrun it uses one worker per core.
"""

from __future__ import annotations

import os

import numpy as np
import torch
from networks import network
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.algorithm.fedprox import FedProx, FedProxParams
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.privacy import CentrallyAppliedPrivacyMechanism, GaussianMechanism
from task import Stopwatch, Task, digits, task
from torch import nn


class Classifier(nn.Module):
    """The model with the two methods pfl asks for."""

    def __init__(self, given: Task) -> None:
        super().__init__()
        self.layers = network(given)

    def loss(self, x, y, eval=False):
        self.train(not eval)
        return nn.functional.cross_entropy(self.layers(x), y)

    @torch.no_grad()
    def metrics(self, x, y, eval=True):  # noqa: ARG002
        return {"correct": Weighted(int((self.layers(x).argmax(1) == y).sum()), len(y))}


class Laps(TrainingProcessCallback):
    """Times central iterations and evaluates the test set as often as the workload says."""

    def __init__(self, given: Task, model: Classifier, test: tuple[np.ndarray, np.ndarray]) -> None:
        self.given, self.model, self.accuracy, self.watch = given, model, None, Stopwatch(given)
        self.test = tuple(torch.as_tensor(part) for part in test)

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):  # noqa: ARG002
        if (central_iteration + 1) % self.given.eval_every == 0 and int(os.environ.get("RANK", 0)) == 0:
            with torch.no_grad():
                right = self.model.layers(self.test[0]).argmax(1) == self.test[1]
            self.accuracy = float(right.double().mean())
        self.watch.lap()
        return False, Metrics()


def main() -> None:
    given = task()
    torch.manual_seed(0)
    if "RANK" in os.environ:
        torch.set_num_threads(1)
    clients, test = digits(given)
    data = [(torch.as_tensor(x), torch.as_tensor(y)) for x, y in clients]
    rng = np.random.RandomState(0)
    # every worker draws the same participants: pfl's distributed sampler then takes its share of them
    queue: list[int] = []

    def next_client() -> int:
        if not queue:
            queue.extend(rng.choice(given.clients, given.per_round, replace=False))
        return queue.pop()

    users = FederatedDataset(lambda user: Dataset(data[user], user_id=str(user)), next_client)
    noise = CentrallyAppliedPrivacyMechanism(
        GaussianMechanism(given.clip, given.sigma / given.clip * given.per_round**0.5)
    )
    classifier = Classifier(given)
    model = PyTorchModel(classifier, torch.optim.SGD, torch.optim.SGD(classifier.parameters(), 1.0))
    shared = {
        "central_num_iterations": given.warm + given.rounds,
        "evaluation_frequency": 10**9,
        "train_cohort_size": given.per_round,
        "val_cohort_size": 0,
    }
    params = FedProxParams(**shared, mu=given.mu) if given.mu else NNAlgorithmParams(**shared)
    local = NNTrainHyperParams(
        local_num_epochs=given.epochs, local_learning_rate=given.lr, local_batch_size=given.batch
    )
    laps = Laps(given, classifier, test)
    algorithm = FedProx() if given.mu else FederatedAveraging()
    backend = SimulatedBackend(training_data=users, val_data=users, postprocessors=[noise])
    algorithm.run(params, backend, model, local, callbacks=[laps], send_metrics_to_platform=False)
    if int(os.environ.get("RANK", 0)) == 0:
        laps.watch.report("pfl", laps.accuracy)


if __name__ == "__main__":
    main()
