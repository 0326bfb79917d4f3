"""The certificate: rates, noise, attackers, bounds, radii, confidence. numpy and scipy only."""
