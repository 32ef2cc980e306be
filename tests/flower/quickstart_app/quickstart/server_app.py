"""quickstart: a Flower / PyTorch server."""

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from quickstart.task import Net, load_test_data
from quickstart.task import test as test_fn

app = ServerApp()


def global_evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Evaluate the model on central data."""
    model = Net()
    model.load_state_dict(arrays.to_torch_state_dict())
    loss, accuracy = test_fn(model, load_test_data())
    print(f"central round {server_round} loss {loss:.4f} accuracy {accuracy:.4f}", flush=True)
    return MetricRecord({"accuracy": accuracy, "loss": loss})


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the app's rounds."""
    arrays = ArrayRecord(Net().state_dict())
    strategy = FedAvg(fraction_train=context.run_config["fraction-train"])
    result = strategy.start(
        grid=grid,
        initial_arrays=arrays,
        num_rounds=context.run_config["num-server-rounds"],
        evaluate_fn=global_evaluate,
    )
    print("finished", list(result.evaluate_metrics_serverapp)[-1], flush=True)
