"""How many edits a naive Bayes of your own survives, and a text that shows that it survives no more."""

from sklearn.feature_extraction.text import CountVectorizer
from sklearn.naive_bayes import MultinomialNB
from sklearn.pipeline import make_pipeline

import adaptdel as ad

spam = ["cheap pills buy now", "win cash now click here", "cheap cash offer click now", "buy cheap offer here"]
ham = ["lunch at noon on friday", "see the notes of the meeting", "the meeting is at noon", "notes and lunch on friday"]
pipeline = make_pipeline(CountVectorizer(), MultinomialNB()).fit(spam + ham, ["spam"] * 4 + ["ham"] * 4)

model = ad.AdditiveClassifier.from_sklearn(pipeline, bound=1.0)  # no word can have a score beyond 1
text = "dear friend buy cheap pills now and win cash now click here for the offer"
[certificate] = model.certify([text])
print(f"{certificate.label}: whoever edits up to {certificate.radius} words cannot change the answer; that is certain")
print(f"the same holds for {certificate.character_radius} edited characters")

other = certificate.counterexample()
print(f"but not for {certificate.radius + 1} words: {other!r} is {model.predict([other])[0]}")
assert model.predict([other])[0] != certificate.label

# Any other sum of scores, such as points for words: arrays in, certificate out.
points = {"free": 3, "click": 2, "winner": 3}
scores = [points.get(word, 0) for word in ["free", "prize", "click", "here", "winner", "click"]]
certificate = ad.exact_certificate(scores, offsets=-2, bound=3)  # class 1 if the sum is above 2
print(f"class {certificate.label}, radius {certificate.radius}, only insertions {certificate.radius_for('ins')}")
