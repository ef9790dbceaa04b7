//! The texts that a pattern matches, as a set: whether a text is in it, and a pattern for the texts that are not.
//!
//! A pattern becomes a finite automaton whose letters are classes of characters that it does not tell apart:
//!
//!   ^a+$    ->    states 0 -a-> 1 -a-> 1, all else to 2; ends: 1
//!
//! Its complement has the other states as ends. It is written as a pattern again by removing one state after another:
//! each way in is joined to each way out (state elimination).

use crate::work::Work;
use regex_syntax::hir::{Class, Hir, HirKind, Look};
use std::collections::{BTreeMap, BTreeSet, HashMap};

const MAX_STATES: usize = 400;
/// States before those that are reached together become one.
const MAX_NFA_STATES: usize = 20_000;
/// Bytes of the pattern that is written.
const MAX_PATTERN: usize = 40_000;

type Ranges = Vec<(char, char)>;

/// The letters: classes of characters.
struct Alphabet {
    starts: Vec<u32>,         // where runs of equal characters begin, from 0 on
    letters: Vec<usize>,      // of each run
    members: Vec<Vec<usize>>, // the letters of each class of the pattern
    count: usize,
}

impl Alphabet {
    fn of(classes: &[Ranges], work: &Work) -> Result<Alphabet, String> {
        let mut starts = BTreeSet::from([0]);
        for (first, last) in classes.iter().flatten() {
            starts.extend([*first as u32, *last as u32 + 1].into_iter().filter(|&start| start <= char::MAX as u32));
        }
        let starts: Vec<u32> = starts.into_iter().collect();
        let mut in_classes = vec![vec![]; starts.len()];
        for (i, class) in classes.iter().enumerate() {
            for (first, last) in class {
                let from = starts.partition_point(|&start| start < *first as u32);
                let to = starts.partition_point(|&start| start <= *last as u32);
                work.small_steps(to - from)?;
                in_classes[from..to].iter_mut().for_each(|run: &mut Vec<usize>| run.push(i));
            }
        }
        let mut names: HashMap<&Vec<usize>, usize> = HashMap::new();
        let mut letters = vec![];
        for run in &in_classes {
            let next = names.len();
            letters.push(*names.entry(run).or_insert(next));
        }
        let mut members = vec![vec![]; classes.len()];
        for (run, letter) in &names {
            run.iter().for_each(|&class| members[class].push(*letter));
        }
        let count = names.len();
        Ok(Alphabet { starts, letters, members, count })
    }

    fn letter(&self, c: char) -> usize {
        let run = self.starts.partition_point(|&start| start <= c as u32);
        self.letters[run - 1]
    }

    /// A pattern for one character of these letters.
    fn class(&self, letters: &BTreeSet<usize>) -> String {
        if letters.len() == self.count {
            return "(?s:.)".to_string();
        }
        let runs = |is_in: bool| {
            let mut ranges: Vec<(u32, u32)> = vec![];
            for i in (0..self.letters.len()).filter(|&i| letters.contains(&self.letters[i]) == is_in) {
                let end = self.starts.get(i + 1).map_or(char::MAX as u32, |start| start - 1);
                match ranges.last_mut() {
                    Some(last) if last.1 + 1 == self.starts[i] => last.1 = end,
                    _ => ranges.push((self.starts[i], end)),
                }
            }
            ranges
        };
        let (own, others) = (runs(true), runs(false));
        let (sign, ranges) = if others.len() < own.len() { ("^", others) } else { ("", own) };
        let spell = |code: u32| match char::from_u32(code) {
            Some(c) if c.is_ascii_alphanumeric() => c.to_string(),
            _ => format!("\\x{{{code:x}}}"),
        };
        let mut out = format!("[{sign}");
        for (first, last) in ranges {
            // No character is a surrogate.
            let first = if (0xD800..0xE000).contains(&first) { 0xE000 } else { first };
            let last = if (0xD800..0xE000).contains(&last) { 0xD7FF } else { last };
            if first < last {
                out.push_str(&format!("{}-{}", spell(first), spell(last)));
            } else if first == last {
                out.push_str(&spell(first));
            }
        }
        out.push(']');
        out
    }
}

fn classes_of(hir: &Hir, into: &mut Vec<Ranges>) -> Result<(), String> {
    match hir.kind() {
        HirKind::Literal(literal) => {
            let text = std::str::from_utf8(&literal.0).map_err(|_| "is not of characters")?;
            into.extend(text.chars().map(|c| vec![(c, c)]));
        }
        HirKind::Class(Class::Unicode(class)) => into.push(class.iter().map(|r| (r.start(), r.end())).collect()),
        HirKind::Class(Class::Bytes(_)) => return Err("is of bytes".to_string()),
        HirKind::Repetition(repetition) => classes_of(&repetition.sub, into)?,
        HirKind::Capture(capture) => classes_of(&capture.sub, into)?,
        HirKind::Concat(parts) | HirKind::Alternation(parts) => {
            parts.iter().try_for_each(|part| classes_of(part, into))?
        }
        HirKind::Empty | HirKind::Look(_) => {}
    }
    Ok(())
}

/// An automaton that may be in several states at once. Its classes are numbered as `classes_of` finds them.
struct Nfa<'a> {
    steps: Vec<Option<(usize, usize)>>, // a class, and the state that it leads to
    free: Vec<Vec<usize>>,              // states that are reached without a character
    work: &'a Work,
}

impl Nfa<'_> {
    fn state(&mut self) -> Result<usize, String> {
        self.work.step()?;
        if self.steps.len() >= MAX_NFA_STATES {
            return Err("is too large".to_string());
        }
        self.steps.push(None);
        self.free.push(vec![]);
        Ok(self.steps.len() - 1)
    }

    fn step(&mut self, from: usize, class: usize) -> Result<usize, String> {
        let (before, after) = (self.state()?, self.state()?);
        self.free[from].push(before);
        self.steps[before] = Some((class, after));
        Ok(after)
    }

    /// Adds the texts of `hir` after a state. Returns the state after them. `next`: the number of the next class.
    fn add(&mut self, hir: &Hir, from: usize, next: &mut usize) -> Result<usize, String> {
        match hir.kind() {
            HirKind::Empty => Ok(from),
            HirKind::Look(_) => Err("has ^ or $ within".to_string()),
            HirKind::Literal(literal) => {
                let count = std::str::from_utf8(&literal.0).map_or(0, |text| text.chars().count());
                let mut at = from;
                for _ in 0..count {
                    at = self.step(at, *next)?;
                    *next += 1;
                }
                Ok(at)
            }
            HirKind::Class(_) => {
                *next += 1;
                self.step(from, *next - 1)
            }
            HirKind::Capture(capture) => self.add(&capture.sub, from, next),
            HirKind::Concat(parts) => parts.iter().try_fold(from, |at, part| self.add(part, at, next)),
            HirKind::Alternation(parts) => {
                let end = self.state()?;
                for part in parts {
                    let begin = self.state()?;
                    self.free[from].push(begin);
                    let after = self.add(part, begin, next)?;
                    self.free[after].push(end);
                }
                Ok(end)
            }
            HirKind::Repetition(repetition) => {
                let first = *next;
                let (mut at, end) = (from, self.state()?);
                for _ in 0..repetition.min {
                    *next = first;
                    at = self.add(&repetition.sub, at, next)?;
                }
                self.free[at].push(end);
                match repetition.max {
                    Some(max) => {
                        for _ in repetition.min..max {
                            *next = first;
                            at = self.add(&repetition.sub, at, next)?;
                            self.free[at].push(end);
                        }
                    }
                    None => {
                        let begin = self.state()?;
                        self.free[at].push(begin);
                        *next = first;
                        let after = self.add(&repetition.sub, begin, next)?;
                        self.free[after].extend([begin, end]);
                    }
                }
                *next = first;
                let mut own = vec![];
                classes_of(&repetition.sub, &mut own)?;
                *next += own.len();
                Ok(end)
            }
        }
    }

    /// With all states that are reached from these without a character.
    fn closure(&self, states: impl IntoIterator<Item = usize>) -> Result<BTreeSet<usize>, String> {
        let mut all = BTreeSet::new();
        let mut open: Vec<usize> = states.into_iter().collect();
        while let Some(state) = open.pop() {
            if all.insert(state) {
                open.extend(&self.free[state]);
            }
        }
        self.work.small_steps(all.len())?;
        Ok(all)
    }
}

/// The alternatives of a pattern, each without its ^ and $, which are told apart from it.
fn alternatives(hir: &Hir) -> Vec<(bool, Vec<Hir>, bool)> {
    match hir.kind() {
        HirKind::Alternation(parts) => parts.iter().flat_map(alternatives).collect(),
        HirKind::Capture(capture) => alternatives(&capture.sub),
        HirKind::Concat(parts) => {
            let is = |part: Option<&Hir>, look: Look| part.is_some_and(|part| part.kind() == &HirKind::Look(look));
            let begins = parts.iter().take_while(|part| is(Some(part), Look::Start)).count();
            let ends = parts[begins..].iter().rev().take_while(|part| is(Some(part), Look::End)).count();
            vec![(begins > 0, parts[begins..parts.len() - ends].to_vec(), ends > 0)]
        }
        HirKind::Look(Look::Start) => vec![(true, vec![], false)],
        HirKind::Look(Look::End) => vec![(false, vec![], true)],
        _ => vec![(false, vec![hir.clone()], false)],
    }
}

/// A set of texts: a complete deterministic automaton, which begins in state 0.
pub struct Texts {
    alphabet: Alphabet,
    next: Vec<Vec<usize>>, // by state and letter
    ends: Vec<bool>,
}

impl Texts {
    /// The texts in which a pattern, as pattern.rs wrote it, matches something. The error says why it cannot be told.
    pub fn of(pattern: &str, work: &Work) -> Result<Texts, String> {
        let hir = regex_syntax::parse(pattern).map_err(|e| e.to_string())?;
        let all = alternatives(&hir);
        let mut classes: Vec<Ranges> = vec![vec![('\0', char::MAX)]]; // any character
        for part in all.iter().flat_map(|(_, parts, _)| parts) {
            classes_of(part, &mut classes)?;
        }
        let alphabet = Alphabet::of(&classes, work)?;
        let mut nfa = Nfa { steps: vec![], free: vec![], work };
        let (begin, end) = (nfa.state()?, nfa.state()?);
        let mut class = 1;
        for (from_start, parts, to_end) in &all {
            let mut at = nfa.state()?;
            nfa.free[begin].push(at);
            if !from_start {
                let after = nfa.step(at, 0)?;
                nfa.free[after].push(at);
            }
            for part in parts {
                at = nfa.add(part, at, &mut class)?;
            }
            nfa.free[at].push(end);
            if !to_end {
                let after = nfa.step(at, 0)?;
                nfa.free[after].push(at);
            }
        }
        Texts::determine(&nfa, begin, end, alphabet)
    }

    /// The automaton with a state for each set of states that are reached together.
    fn determine(nfa: &Nfa, begin: usize, end: usize, alphabet: Alphabet) -> Result<Texts, String> {
        let first = nfa.closure([begin])?;
        let mut known = HashMap::from([(first.clone(), 0)]);
        let mut sets = vec![first];
        let mut next: Vec<Vec<usize>> = vec![];
        while next.len() < sets.len() {
            let mut reached = vec![vec![]; alphabet.count];
            for (class, after) in sets[next.len()].iter().filter_map(|&state| nfa.steps[state]) {
                nfa.work.small_steps(alphabet.members[class].len())?;
                alphabet.members[class].iter().for_each(|&letter| reached[letter].push(after));
            }
            let mut row = vec![];
            for states in reached {
                let set = nfa.closure(states)?;
                let count = sets.len();
                let state = *known.entry(set.clone()).or_insert(count);
                if state == count {
                    if count >= MAX_STATES {
                        return Err("is too large".to_string());
                    }
                    sets.push(set);
                }
                row.push(state);
            }
            next.push(row);
        }
        let ends = sets.iter().map(|set| set.contains(&end)).collect();
        Texts { alphabet, next, ends }.least(nfa.work)
    }

    /// With one state for all that the same texts lead to an end from (Moore).
    fn least(self, work: &Work) -> Result<Texts, String> {
        let mut group: Vec<usize> = self.ends.iter().map(|&end| usize::from(end)).collect();
        let mut count = 0;
        loop {
            let mut names: HashMap<Vec<usize>, usize> = HashMap::new();
            let mut finer = vec![];
            for (state, row) in self.next.iter().enumerate() {
                work.small_steps(row.len())?;
                let key: Vec<usize> = std::iter::once(group[state]).chain(row.iter().map(|&to| group[to])).collect();
                let name = names.len();
                finer.push(*names.entry(key).or_insert(name));
            }
            group = finer;
            if names.len() == count {
                break;
            }
            count = names.len();
        }
        let (mut next, mut ends) = (vec![vec![]; count], vec![false; count]);
        for (state, row) in self.next.iter().enumerate() {
            next[group[state]] = row.iter().map(|&to| group[to]).collect();
            ends[group[state]] = self.ends[state];
        }
        Ok(Texts { alphabet: self.alphabet, next, ends }) // the first state comes first, so it is in group 0
    }

    pub fn has(&self, text: &str) -> bool {
        let last = text.chars().fold(0, |state, c| self.next[state][self.alphabet.letter(c)]);
        self.ends[last]
    }

    /// All other texts.
    pub fn others(mut self) -> Texts {
        self.ends.iter_mut().for_each(|end| *end = !*end);
        self
    }

    /// A pattern for just these texts; None: there is none.
    pub fn pattern(&self, work: &Work) -> Result<Option<String>, String> {
        let (begin, end) = (self.next.len(), self.next.len() + 1);
        let mut ways: BTreeMap<(usize, usize), String> = BTreeMap::from([((begin, 0), String::new())]);
        for (from, row) in self.next.iter().enumerate() {
            let mut letters: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
            for (letter, &to) in row.iter().enumerate() {
                letters.entry(to).or_default().insert(letter);
            }
            for (to, letters) in letters {
                ways.insert((from, to), self.alphabet.class(&letters));
            }
            if self.ends[from] {
                ways.insert((from, end), String::new());
            }
        }
        let mut left: BTreeSet<usize> = (0..begin).collect();
        while !left.is_empty() {
            work.small_steps(ways.len())?;
            // The number and the bytes of the ways into each state, and out of it.
            let mut sizes = vec![[0usize; 4]; end + 1];
            for (&(from, to), way) in ways.iter().filter(|((from, to), _)| from != to) {
                (sizes[to][0], sizes[to][1]) = (sizes[to][0] + 1, sizes[to][1] + way.len());
                (sizes[from][2], sizes[from][3]) = (sizes[from][2] + 1, sizes[from][3] + way.len());
            }
            let &state = left.iter().min_by_key(|&&state| sizes[state][0] * sizes[state][2]).unwrap();
            let [ins, in_bytes, outs, out_bytes] = sizes[state];
            let around = ways.get(&(state, state)).map_or(0, String::len);
            let joined = in_bytes * outs + out_bytes * ins + around * ins * outs;
            if joined + ways.values().map(String::len).sum::<usize>() > MAX_PATTERN {
                return Err("needs too long a pattern to say what it does not match".to_string());
            }
            left.remove(&state);
            remove_state(state, &mut ways);
        }
        Ok(ways.get(&(begin, end)).map(|way| format!("^{way}$")))
    }
}

/// Joins each way into a state to each way out of it.
fn remove_state(state: usize, ways: &mut BTreeMap<(usize, usize), String>) {
    let around = ways.remove(&(state, state)).map_or(String::new(), |way| format!("(?:{way})*"));
    let (own, others): (BTreeMap<_, _>, BTreeMap<_, _>) =
        std::mem::take(ways).into_iter().partition(|(way, _)| way.0 == state || way.1 == state);
    *ways = others;
    for ((from, _), before) in own.iter().filter(|(way, _)| way.1 == state) {
        for ((_, to), after) in own.iter().filter(|(way, _)| way.0 == state) {
            let way = format!("{before}{around}{after}");
            match ways.get_mut(&(*from, *to)) {
                Some(known) => *known = format!("(?:{known}|{way})"),
                None => drop(ways.insert((*from, *to), way)),
            }
        }
    }
}
