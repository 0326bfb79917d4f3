"""The certificate: rates, noise, threat models, bounds, radii, confidence. numpy and scipy only."""
