/* The scores of Sphinx's own scorer, but for a page that says what a word means: that one comes first. */
var Scorer = {
  score: ([docname, title, anchor, descr, score]) => (docname === "look_up/glossary" ? 1000 : 0) + score,
  objNameMatch: 11, objPartialMatch: 6, objPrio: { 0: 15, 1: 5, 2: -5 }, objPrioDefault: 0,
  title: 15, partialTitle: 7, term: 5, partialTerm: 2,
};
