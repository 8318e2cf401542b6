"""Where the figures and samples of a training go besides its terminal and events: TensorBoard, W&B, MLflow, CSV."""
