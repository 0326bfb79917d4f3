"""What 3960 of 4000 votes certify for a text of 400 words under AdaptDel."""

import adaptdel as ad

noise = ad.Deletion(ad.LengthRate(p_min=0.9, k=23))  # deletes 94% of 400 words: the model sees about 23
p1, _ = ad.clopper_pearson(3960, 4000, alpha=0.05)  # 3960 of 4000 noisy copies got the same answer
radius = ad.certified_radius(p1, length=400, noise=noise)
print(f"with 95% confidence, no attacker who edits up to {radius} words can change the answer")

deletions = ad.certified_radius(p1, length=400, noise=noise, ops=["del"])
print(f"the radius against an attacker who can only delete words is {deletions}")
needed = ad.least_probability(radius, length=400, noise=noise)
print(f"radius {radius} needs a probability of {needed:.4f}; the votes give at least {p1:.4f}")
print(f"10^{ad.log10_cardinality(radius, length=400):.0f} texts are covered")
assert ad.rigorous_radius(p1, length=400, noise=noise) == radius  # the same decision in ball arithmetic
