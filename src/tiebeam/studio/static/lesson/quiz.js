// The questions of the final quiz.
export const QUIZ = [
  { id: "saves", ask: "A model has a vocabulary of 50,257 and a width of 768. What does tying save?", right: 1, answers: [
    ["Half of its parameters", "Only half of the vocabulary matrices. The non-embedding parameters do not change."],
    ["50,257 × 768 = 38,597,376 parameters", "One matrix, exactly. That is GPT-2 small."],
    ["About 50 million", "This number is often repeated; the product is 38.6 million."] ] },
  { id: "psd", ask: "Which of these can E·Eᵀ not be, at any width?", right: 2, answers: [
    ["Zero for some pairs of words", "It can: orthogonal rows."],
    ["Larger than 1", "It can: long rows."],
    ["Negative for a word after itself", "A row times itself is a squared norm. This follows from E·Eᵀ being positive semidefinite."] ] },
  { id: "worst", ask: "Which limits a tied direct path more: symmetry or positive semidefiniteness?", right: 1, answers: [
    ["Symmetry", "It is the better known one, but on real text the antisymmetric part is about a sixth of the energy."],
    ["Positive semidefiniteness", "Most of the symmetric part’s energy is in negative eigenvalues; without them 80% is missed at rank 64, compared with 25% for symmetry alone."],
    ["They are the same constraint", "`E·diag(±1)·Eᵀ` is symmetric and not semidefinite, and its loss is clearly lower."] ] },
  { id: "small", ask: "What is the cheapest way to recover most of the loss of a tied direct path?", right: 0, answers: [
    ["A d × d map", "It costs d² parameters instead of V·d, and closes 83–98% of the gap."],
    ["A wider embedding", "E·Eᵀ stays symmetric and semidefinite at every width."],
    ["A second matrix", "That works, but costs V·d parameters."] ] },
  { id: "convert", ask: "You have a trained untied model and set W := E. What happens?", right: 2, answers: [
    ["Nothing: both are vocabulary matrices", "The two matrices were trained for different purposes, and the layers for those two matrices."],
    ["The loss rises slightly", "TinyLlama 1.1B goes from 2.8 nats per token to more than 10. A uniform guess over its 32,000 tokens costs ln 32,000 = 10.37."],
    ["The model is destroyed", "Tie before training, or factorize both matrices jointly and keep two small maps."] ] },
  { id: "who", ask: "Which model is most likely tied?", right: 0, answers: [
    ["500M parameters, vocabulary 150k", "A separate LM head would be a large share of it. Nearly all such models are tied."],
    ["70B parameters, vocabulary 32k", "A separate LM head is well below 1% there; nearly all such models are untied."],
    ["It does not depend on size", "It depends on the share of the LM head, which falls as models grow."] ] },
];
