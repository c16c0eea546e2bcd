//! Which things a list shows: filters of the API as a form, kept in the URL.

use super::form::{Fields, date_shown, is_date, millis};
use super::visitor::{Problem, query};
use maud::{Markup, html};

/// A field of the form.
pub(super) struct Field {
    /// Its name, here and in the API.
    name: &'static str,
    label: &'static str,
    hint: &'static str,
    /// Values and what to call them; none for a text.
    choices: &'static [(&'static str, &'static str)],
}

/// A field for a text or a date.
pub(super) const fn field(name: &'static str, label: &'static str, hint: &'static str) -> Field {
    Field { name, label, hint, choices: &[] }
}

/// A field with a few values to choose from.
pub(super) const fn choice(
    name: &'static str,
    label: &'static str,
    choices: &'static [(&'static str, &'static str)],
) -> Field {
    Field { name, label, hint: "", choices }
}

/// The form of a list.
pub(super) struct Form {
    /// Where the list is.
    pub(super) path: &'static str,
    /// Fields that are asked for most. Several lists, so that forms can share some.
    pub(super) common: &'static [&'static [Field]],
    /// The others.
    pub(super) others: &'static [&'static [Field]],
    /// What the others mean.
    pub(super) hint: &'static str,
}

impl Form {
    fn field(&self, name: &str) -> Option<&'static Field> {
        self.common.iter().chain(self.others).copied().flatten().find(|field| field.name == name)
    }
}

/// What says which page of a list is shown, and is no filter.
const OF_PAGES: [&str; 2] = ["cursor", "order"];

/// What was asked for, as it stands in the URL.
pub(super) struct Filters {
    form: &'static Form,
    pairs: Vec<(&'static str, String)>,
}

impl Filters {
    /// Takes what the form knows from a query or a body; the rest is left alone.
    pub(super) fn read(form: &'static Form, text: &str) -> Filters {
        let of_pages = |name: &str| OF_PAGES.into_iter().find(|known| *known == name);
        let known = |name: &str| form.field(name).map(|field| field.name).or_else(|| of_pages(name));
        Filters { form, pairs: Fields::parse(text.as_bytes()).known(known) }
    }

    pub(super) fn value(&self, name: &str) -> &str {
        self.pairs.iter().find(|(known, _)| *known == name).map_or("", |(_, value)| value)
    }

    fn chosen(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let chosen = self.pairs.iter().filter(|(name, _)| !OF_PAGES.contains(name));
        chosen.map(|(name, value)| (*name, value.as_str()))
    }

    /// Nothing but the page is chosen.
    pub(super) fn is_empty(&self) -> bool {
        self.chosen().next().is_none()
    }

    /// Whether a time is chosen.
    pub(super) fn has_dates(&self) -> bool {
        self.chosen().any(|(name, _)| is_date(name))
    }

    /// As they stand in the URL.
    pub(super) fn pairs(&self) -> Vec<(&str, &str)> {
        self.pairs.iter().map(|(name, value)| (*name, value.as_str())).collect()
    }

    /// The same, from the first page on, as a query.
    pub(super) fn without_page(&self) -> String {
        query(&self.chosen().collect::<Vec<_>>())
    }

    /// As the API wants them, with more names and values, which win.
    pub(super) fn for_api(&self, more: &[(&str, &str)]) -> Result<String, Problem> {
        let mut pairs = Vec::new();
        for (name, value) in self.pairs.iter().filter(|(name, _)| more.iter().all(|(other, _)| name != other)) {
            let value = if is_date(name) { millis(value)?.to_string() } else { value.clone() };
            pairs.push((*name, value));
        }
        let said = pairs.iter().map(|(name, value)| (*name, value.as_str()));
        Ok(query(&said.chain(more.iter().copied()).collect::<Vec<_>>()))
    }

    /// As a bulk cancel of `what` wants them, with more names and values; those that it does not support are refused.
    pub(super) fn for_cancel(&self, what: &str, not: &[&str], more: &[(&str, &str)]) -> Result<String, Problem> {
        if let Some((name, _)) = self.chosen().find(|(name, _)| not.contains(name)) {
            let label = self.label(name);
            let text =
                format!("{what} cannot be cancelled by “{label}”; remove that filter or select {what} in the list");
            return Err(Problem::refused(text));
        }
        self.for_api(&[&OF_PAGES.map(|name| (name, "")), more].concat())
    }

    /// In words.
    pub(super) fn in_words(&self) -> String {
        self.chosen().map(|(name, value)| format!("{}: {value}", self.label(name))).collect::<Vec<_>>().join(" · ")
    }

    fn label(&self, name: &str) -> &'static str {
        self.form.field(name).map_or("", |field| field.label)
    }

    /// The form.
    pub(super) fn form(&self) -> Markup {
        let is_used = self.form.others.iter().copied().flatten().any(|field| !self.value(field.name).is_empty());
        html! {
            form #filters method="get" action=(self.form.path) {
                div.filter-row {
                    @for field in self.form.common.iter().copied().flatten() { (self.input(field)) }
                    div.actions {
                        button.primary type="submit" { "Apply" }
                        @if !self.is_empty() { a.button href=(self.form.path) { "Clear" } }
                    }
                }
                details.text open[is_used] {
                    summary { "More filters" }
                    div.filter-row { @for field in self.form.others.iter().copied().flatten() { (self.input(field)) } }
                    p.hint { (self.form.hint) }
                }
            }
        }
    }

    fn input(&self, field: &Field) -> Markup {
        let (is_date, value) = (is_date(field.name), self.value(field.name));
        html! {
            label { (field.label)
                @if field.choices.is_empty() {
                    input type=(if is_date { "datetime-local" } else { "text" }) step=[is_date.then_some("1")]
                        name=(field.name) value=(if is_date { date_shown(value) } else { value.to_owned() })
                        placeholder=(field.hint) autocomplete="off";
                } @else {
                    select name=(field.name) {
                        @for (choice, label) in field.choices {
                            option value=(choice) selected[value == *choice] { (label) }
                        }
                    }
                }
            }
        }
    }

    /// Hidden fields that bring the same filters to a form that acts.
    pub(super) fn hidden(&self) -> Markup {
        html! { @for (name, value) in self.chosen() { input type="hidden" name=(name) value=(value); } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THINGS: Form = Form {
        path: "/things",
        common: &[&[choice("state", "State", &[("", "any"), ("BAD", "bad")])], &[field("label", "Label", "")]],
        others: &[&[field("host", "Host", ""), field("fromDate", "From (UTC)", ""), field("toDate", "To (UTC)", "")]],
        hint: "",
    };

    #[test]
    fn filters_become_those_of_the_api() {
        let filters = Filters::read(
            &THINGS,
            "state=BAD&label=a%2Cb&fromDate=2026-11-16T12:00&toDate=&evil=1&host=+x+&cursor=1-2&order=x",
        );
        assert_eq!(
            filters.for_api(&[("count", "50")]).unwrap(),
            "state=BAD&label=a%2Cb&fromDate=1794830400000&host=x&cursor=1-2&order=x&count=50"
        );
        assert_eq!(
            filters.for_api(&[("cursor", ""), ("state", "GOOD")]).unwrap(),
            "label=a%2Cb&fromDate=1794830400000&host=x&order=x&state=GOOD"
        );
        assert_eq!(filters.without_page(), "state=BAD&label=a%2Cb&fromDate=2026-11-16T12%3A00&host=x");
        assert_eq!(filters.in_words(), "State: BAD · Label: a,b · From (UTC): 2026-11-16T12:00 · Host: x");
        assert!(Filters::read(&THINGS, "toDate=soon").for_api(&[]).is_err());
        assert!(filters.has_dates() && !Filters::read(&THINGS, "label=a&toDate=").has_dates());
        assert!(!filters.is_empty() && Filters::read(&THINGS, "cursor=1-2&order=x&other=1").is_empty());
    }

    #[test]
    fn a_cancel_has_all_filters_or_is_refused() {
        let cancel = |text: &str| Filters::read(&THINGS, text).for_cancel("things", &["host"], &[("async", "true")]);
        assert_eq!(cancel("label=a&cursor=1-2&order=x").unwrap(), "label=a&async=true", "a page is no filter");
        assert_eq!(cancel("host=&cursor=1").unwrap(), "async=true");
        let problem = cancel("label=a&host=b").unwrap_err();
        let text = "things cannot be cancelled by “Host”; remove that filter or select things in the list";
        assert_eq!(problem.text, text);
    }

    #[test]
    fn a_form_shows_the_filters_of_the_url() {
        let page = Filters::read(&THINGS, "state=BAD&fromDate=1794830400123&label=%22%3E").form().into_string();
        for text in [
            "value=\"BAD\" selected",
            "value=\"2026-11-16T12:00:00\"",
            "value=\"&quot;&gt;\"",
            "<details class=\"text\" open>",
        ] {
            assert!(page.contains(text), "{text}: {page}");
        }
        let hidden = Filters::read(&THINGS, "label=a&cursor=1").hidden().into_string();
        assert_eq!(hidden, "<input type=\"hidden\" name=\"label\" value=\"a\">");
    }
}
