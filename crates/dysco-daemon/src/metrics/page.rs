//! Page of metrics: the declaration of each, and its values at one moment.

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, prometheus_text, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use super::changes::Durations;

/// Prefix of each name.
pub(super) const PREFIX: &str = "dysco";

/// Text formats of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus text format 0.0.4, for readers that do not ask for OpenMetrics.
    Prometheus,
}

/// All metrics at one moment.
#[derive(Debug, Default)]
pub struct Page {
    pub(super) families: Vec<Family>,
}

/// Metric, with a value for each set of labels.
#[derive(Debug)]
pub(super) struct Family {
    pub name: &'static str,
    pub help: &'static str,
    pub unit: Option<Unit>,
    pub kind: MetricType,
    pub labels: &'static [&'static str],
    samples: Vec<Sample>,
    durations: Option<Durations>,
}

#[derive(Debug)]
struct Sample {
    labels: Vec<(&'static str, String)>,
    value: Value,
    /// Name under Counters of `status`.
    listed: Option<String>,
}

/// Value of a sample.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value {
    Count(u64),
    Real(f64),
}

impl From<u64> for Value {
    fn from(count: u64) -> Value {
        Value::Count(count)
    }
}

impl From<f64> for Value {
    fn from(real: f64) -> Value {
        Value::Real(real)
    }
}

impl From<bool> for Value {
    fn from(yes: bool) -> Value {
        Value::Count(yes.into())
    }
}

impl Page {
    /// Declares a counter; `_total` is added to its name.
    pub(super) fn counter(
        &mut self,
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> &mut Family {
        self.declare(name, None, MetricType::Counter, labels, help)
    }

    /// Declares a gauge.
    pub(super) fn gauge(
        &mut self,
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> &mut Family {
        self.declare(name, None, MetricType::Gauge, labels, help)
    }

    /// Declares a gauge of seconds; `_seconds` is added to its name.
    pub(super) fn seconds(
        &mut self,
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> &mut Family {
        self.declare(name, Some(Unit::Seconds), MetricType::Gauge, labels, help)
    }

    /// Declares a histogram of seconds; `_seconds` is added to its name.
    pub(super) fn durations(
        &mut self,
        name: &'static str,
        help: &'static str,
        durations: Durations,
    ) {
        let (kind, labels) = (MetricType::Histogram, Durations::LABELS);
        self.declare(name, Some(Unit::Seconds), kind, labels, help)
            .durations = Some(durations);
    }

    fn declare(
        &mut self,
        name: &'static str,
        unit: Option<Unit>,
        kind: MetricType,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> &mut Family {
        let at = self.families.len();
        self.families.push(Family {
            name,
            help,
            unit,
            kind,
            labels,
            samples: Vec::new(),
            durations: None,
        });
        &mut self.families[at]
    }

    /// Returns the values that `status` lists, by their names there.
    pub fn listed(&self) -> BTreeMap<String, u64> {
        let samples = self.families.iter().flat_map(|family| &family.samples);
        let listed = samples.filter_map(|sample| match (&sample.listed, sample.value) {
            (Some(name), Value::Count(count)) => Some((name.clone(), count)),
            _ => None,
        });
        listed.collect()
    }

    /// Returns the text of the page.
    pub fn write(self, format: Format) -> Result<String, fmt::Error> {
        let mut registry = Registry::with_prefix(PREFIX);
        registry.register_collector(Box::new(self));
        let mut page = String::new();
        match format {
            Format::OpenMetrics => text::encode(&mut page, &registry)?,
            Format::Prometheus => prometheus_text::encode(&mut page, &registry)?,
        }
        Ok(page)
    }
}

impl Family {
    /// Adds a value, with the values of its labels in their order.
    pub(super) fn value(&mut self, labels: &[&str], value: impl Into<Value>) -> &mut Family {
        self.add(labels, value.into(), None)
    }

    /// Adds a value that `status` lists by a separate name.
    pub(super) fn listed(&mut self, name: &str, labels: &[&str], count: u64) -> &mut Family {
        self.add(labels, Value::Count(count), Some(name.to_owned()))
    }

    fn add(&mut self, labels: &[&str], value: Value, listed: Option<String>) -> &mut Family {
        debug_assert_eq!(labels.len(), self.labels.len(), "{}", self.name);
        let values = labels.iter().map(|value| (*value).to_owned());
        self.samples.push(Sample {
            labels: self.labels.iter().copied().zip(values).collect(),
            value,
            listed,
        });
        self
    }

    /// Returns the names of the metric's series in a page.
    #[cfg(test)]
    pub(super) fn series(&self) -> Vec<String> {
        let unit = self.unit.as_ref().map(|unit| format!("_{}", unit.as_str()));
        let name = format!("{PREFIX}_{}{}", self.name, unit.unwrap_or_default());
        match self.kind {
            MetricType::Counter => vec![format!("{name}_total")],
            MetricType::Histogram => ["bucket", "sum", "count"]
                .map(|part| format!("{name}_{part}"))
                .to_vec(),
            _ => vec![name],
        }
    }

    fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let unit = self.unit.as_ref();
        let mut metric = encoder.encode_descriptor(self.name, self.help, unit, self.kind)?;
        for sample in &self.samples {
            let one = metric.encode_family(&sample.labels)?;
            match (self.kind, sample.value) {
                (MetricType::Counter, Value::Count(n)) => ConstCounter::new(n).encode(one)?,
                (MetricType::Counter, Value::Real(n)) => ConstCounter::new(n).encode(one)?,
                (_, Value::Count(n)) => ConstGauge::new(n).encode(one)?,
                (_, Value::Real(n)) => ConstGauge::new(n).encode(one)?,
            }
        }
        match &self.durations {
            Some(durations) => durations.encode(metric),
            None => Ok(()),
        }
    }
}

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut families = self.families.iter();
        families.try_for_each(|family| family.encode(&mut encoder))
    }
}
