// Answer questions, and not only lists of words.
//
// Sphinx finds a page only if it has every word of the query, so a whole sentence often finds
// nothing. This function replaces that step: it finds the pages with any of the words. A rare word
// counts more than a frequent one, a word in a title or a heading more than one in the text, and a
// word of a short page more than one of a long page. A result leads to the heading that matches
// best. tests/docs/test_site.py runs this file.

"use strict";

const IN_TITLE = 4; // how much a word counts there; in the text it counts 1
const IN_HEADING = 2.5;
const LENGTH_WEIGHT = 0.25; // 0: the length of a page is ignored; 1: as in BM25
const LEAST_SHARE = 0.25; // of the best result's score; pages below it are not listed
const TOP_SCORE = 30; // of a page with all words in its title; Sphinx gives 15 for an exact title

// Words that users and the pages use for the same thing: a search treats them as equal.
const SAME_WORDS = [
  "bfloat16 bf16",
  "certificate ssl tls",
  "checksum hash digest",
  "deterministic reproducible seed",
  "evaluate eval validate validation",
  "folder directory",
  "hugging huggingface",
  "kill sigkill crash killed",
  "machine node",
  "macos mac",
  "memory oom",
  "merge append combine join",
  "missing null nan gap",
  "notebook jupyter ipython colab",
  "offline internet",
  "progress tqdm",
];
// Words of questions, which say little of what they are about, and how much they count.
const QUESTION_WORDS =
  "best better choose different difference do get good happen make mean meaning mds need one set " +
  "should some use want way which without work";
const QUESTION_WORDS_SHARE = 0.25;
const NAME_PART_SHARE = 0.2; // how much "batch" counts in a search for batch_size
// Pages that answer few questions of users, and how much their scores count.
const LESS = [
  [/^(index|contributing|benchmarks|about\/changes)$|^decisions\//, 0.3],
  [/^door$|^api\//, 0.6],
  [/^guides\/(automodel|axolotl|detection|diffusers|grain)$/, 0.7],
  [/^guides\/(olmo-core|open-clip|timm|torchtitan|verl)$/, 0.7],
];

/** The pages that a word of the index leads to, as a list. */
const listPages = (pages) => (pages === undefined ? [] : [].concat(pages));

/** splitQuery of Sphinx, which also finds the parts of names such as num_workers. */
const splitWords = splitQuery;
splitQuery = (text) => [...new Set(splitWords(text).flatMap((word) => [word, ...word.split("_")]))];

/** The stem of a word, or that of the first word of its list in SAME_WORDS. */
const sameStems = new Map();
for (const words of SAME_WORDS) {
  const stems = words.split(" ").map((word) => new Stemmer().stemWord(word));
  for (const stem of stems) sameStems.set(stem, stems[0]);
}
const normalizeStem = (stem) => sameStems.get(stem) ?? stem;

/** The stems of a text, without stop words. */
function stemWords(text) {
  const stemmer = new Stemmer();
  const words = splitQuery(text.toLowerCase()).filter((word) => !stopwords.has(word));
  return new Set(words.map((word) => normalizeStem(stemmer.stemWord(word))));
}

/** For each word of the query, a map from pages to the weight of the word in their text. */
function weighWords(words, index) {
  const lengths = new Array(index.docnames.length).fill(0);
  for (const pages of Object.values(index.terms))
    for (const page of listPages(pages)) lengths[page] += 1;
  const mean = lengths.reduce((sum, length) => sum + length, 0) / lengths.length;

  const questionWords = stemWords(QUESTION_WORDS);
  const names = words.filter((word) => word.includes("_") && index.terms[word] !== undefined);
  // The last part is cut like the name: batch_siz. A part stays a word of the query: size.
  const nameParts = names.flatMap((name) => name.split("_"));
  const isPart = (word) => nameParts.some((part) => word === part || word === `${part}e`);
  const terms = [...Object.entries(index.terms), ...Object.entries(index.titleterms)];
  const weights = new Map();
  for (const word of words) {
    const isLonger = (term) =>
      word.length > 3 && term.length > word.length && term.startsWith(word);
    const pages = new Map(); // whether the word itself is on the page, or only a longer one
    for (const [term, found] of terms) {
      const part = normalizeStem(term) === word ? 1 : isLonger(term) ? 0.5 : 0;
      if (part)
        for (const page of listPages(found)) pages.set(page, Math.max(pages.get(page) ?? 0, part));
    }
    const share = questionWords.has(word) ? QUESTION_WORDS_SHARE : 1;
    const partShare = isPart(word) ? NAME_PART_SHARE : 1;
    const rarity = share * partShare * Math.log(1 + lengths.length / (1 + pages.size));
    for (const [page, part] of pages)
      pages.set(page, (part * rarity) / (1 + LENGTH_WEIGHT * (lengths[page] / mean - 1)));
    weights.set(word, { pages, rarity });
  }
  return weights;
}

/** How much a title counts: its words of the query, less if most of its words are others. */
function weighTitle(title, words, weights) {
  const shared = words.filter((word) => title.has(word));
  const rarity = shared.reduce((sum, word) => sum + weights.get(word).rarity, 0);
  return rarity * (0.6 + (0.4 * shared.length) / Math.max(title.size, 1));
}

/** The headings of each page, as lists of {text, anchor, stems}. */
function listHeadings(index) {
  const headings = index.docnames.map(() => []);
  for (const [text, places] of Object.entries(index.alltitles))
    for (const [page, anchor] of places)
      if (text !== index.titles[page]) headings[page].push({ text, anchor, stems: stemWords(text) });
  return headings;
}

/** Search.performTermsSearch of Sphinx: results as [page, title, anchor, text, score, file, kind]. */
Search.performTermsSearch = (searchTerms, excludedTerms) => {
  const index = Search._index;
  const words = [...new Set([...searchTerms].map(normalizeStem))];
  const weights = weighWords(words, index);
  const headings = listHeadings(index);
  const possible = words.reduce((sum, word) => sum + IN_TITLE * weights.get(word).rarity, 0);
  const isOn = (page, word) => weights.get(word)?.pages.has(page);
  const excluded = weighWords([...excludedTerms], index);

  const results = [];
  index.docnames.forEach((name, page) => {
    if ([...excluded.values()].some(({ pages }) => pages.has(page))) return;
    const title = stemWords(index.titles[page]);
    const others = words.filter((word) => !title.has(word));
    const titleWeight = weighTitle(title, words, weights);
    let [closest, most] = [null, 0];
    for (const heading of headings[page]) {
      const weight = weighTitle(heading.stems, words, weights);
      if (weight > most) [closest, most] = [heading, weight];
    }
    const inText = others.filter((word) => isOn(page, word) && !closest?.stems.has(word));
    let score = IN_TITLE * titleWeight;
    // Of a heading, only the words count that the title lacks.
    if (closest) score += IN_HEADING * weighTitle(closest.stems, others, weights);
    for (const word of inText) score += weights.get(word).pages.get(page);
    for (const [pattern, share] of LESS) if (pattern.test(name)) score *= share;
    const isCloser = most > titleWeight; // otherwise the result leads to the top of the page
    if (score > 0)
      results.push([
        name,
        isCloser ? `${index.titles[page]} > ${closest.text}` : index.titles[page],
        isCloser && closest.anchor ? `#${closest.anchor}` : "",
        null,
        (TOP_SCORE * score) / possible,
        index.filenames[page],
        SearchResultKind.text,
      ]);
  });
  const best = Math.max(0, ...results.map((result) => result[4]));
  return results.filter((result) => result[4] >= LEAST_SHARE * best);
};

/** Search.performObjectSearch of Sphinx, without names that only contain the word. */
const searchObjects = Search.performObjectSearch;
Search.performObjectSearch = (word, words) =>
  searchObjects(word, words).filter(([, name]) => name.toLowerCase().split(".").pop() === word);
