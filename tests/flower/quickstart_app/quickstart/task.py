"""quickstart: model, data and loops, as in Flower's own PyTorch quickstart."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from nbafl.data import mnist


class Net(nn.Module):
    """A small network."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(28 * 28, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(functional.relu(self.fc1(x.flatten(1))))


def load_data(partition_id: int, num_partitions: int) -> DataLoader:
    """Load one client's share of the first 2,000 digits."""
    digits = mnist.train()
    x, y = torch.from_numpy(digits.pixels()[:2000]), torch.from_numpy(digits.classes()[:2000])
    return DataLoader(
        TensorDataset(x[partition_id::num_partitions], y[partition_id::num_partitions]), batch_size=32
    )


def load_test_data() -> DataLoader:
    digits = mnist.test()
    return DataLoader(
        TensorDataset(torch.from_numpy(digits.pixels()[:1000]), torch.from_numpy(digits.classes()[:1000])),
        batch_size=500,
    )


def train(net: nn.Module, loader: DataLoader, epochs: int, lr: float) -> float:
    """Train the model on the training set."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    total = 0.0
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(net(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
    return total / (epochs * len(loader))


def test(net: nn.Module, loader: DataLoader) -> tuple[float, float]:
    """Validate the model on the test set."""
    net.eval()
    correct, loss, count = 0, 0.0, 0
    with torch.no_grad():
        for images, labels in loader:
            outputs = net(images)
            loss += functional.cross_entropy(outputs, labels, reduction="sum").item()
            correct += int((outputs.argmax(1) == labels).sum())
            count += len(labels)
    return loss / count, correct / count
