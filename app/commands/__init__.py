"""The sub-commands of `hindcast`, one module each; importing one must stay cheap."""
