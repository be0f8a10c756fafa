"""Where other people train and deploy: callbacks for Lightning and the Hugging Face Trainer, and export."""
