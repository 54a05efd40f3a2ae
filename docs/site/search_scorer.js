// Ranks the pages of a search by the number of words of the query in their titles. The
// scores of Sphinx are equal for one word in a title and for several, and for all pages
// with the words in their text.
"use strict";

// Long pages for contributors and tables of results contain nearly every word.
const LATER = new Set(
  "ablation architecture benchmarks changelog contributing correctness race".split(" ")
);

const wordsOfQuery = () => {
  const query = new URLSearchParams(window.location.search).get("q") || "";
  return [...new Set(query.toLowerCase().split(/[^\p{L}\p{N}_]+/u))].filter(
    (word) => word.length > 2 && !(window.stopwords || new Set()).has?.(word)
  );
};

const stemOf = (word) => new Stemmer().stemWord(word);

var Scorer = {
  score: ([docName, _title, _anchor, _descr, score, _file, kind]) => {
    const index = Search._index.docnames.indexOf(docName);
    const title = Search._index.titles[index].toLowerCase().split(/[^\p{L}\p{N}_]+/u);
    const stems = title.map(stemOf);
    let added = LATER.has(docName) ? -6 : 0;
    for (const word of wordsOfQuery()) {
      const stem = stemOf(word);
      const sections = [Search._index.titleterms[stem] ?? []].flat();
      if (stems.includes(stem)) added += 12;
      else if (sections.includes(index)) added += 4;
    }
    return score + added;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
