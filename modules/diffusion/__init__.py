"""The mathematics of diffusion: objectives, timesteps, losses."""
