"""What a model, a host and a trace come to before anything is bought. It serves nothing."""
