//! Tests of the alerts, as Prometheus evaluates them.

#![allow(clippy::unwrap_used, reason = "a panic in a test is its report")]

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

/// Series with its values, and the alerts that fire by them after 20 minutes.
type Case = (&'static str, &'static str, &'static [&'static str]);

const CASES: &[Case] = &[
    (
        "dysco_certificate_expiry_timestamp_seconds{certificate='host'}",
        "31",
        &[],
    ),
    (
        "dysco_certificate_expiry_timestamp_seconds{certificate='host'}",
        "10",
        &["DyscoCertificateExpires"],
    ),
    (
        "dysco_certificate_expiry_timestamp_seconds{certificate='host'}",
        "2",
        &["DyscoCertificateExpiresSoon"],
    ),
    (
        "dysco_certificate_expiry_timestamp_seconds{certificate='authority'}",
        "181",
        &[],
    ),
    (
        "dysco_certificate_expiry_timestamp_seconds{certificate='authority'}",
        "100",
        &["DyscoAuthorityExpires"],
    ),
    (
        "dysco_certificate_expiry_timestamp_seconds{certificate='authority'}",
        "2",
        &["DyscoAuthorityExpiresSoon"],
    ),
    // The first loss of a daemon that exports the counter before it.
    (
        "dysco_changes_total{kind='removal',mode='local',outcome='lost'}",
        "0x14 1x10",
        &["DyscoSessionsLost"],
    ),
];

/// Returns the values of a case as promtool reads them. A number is one of days; the clock of a test
/// begins at 0.
fn values(written: &str) -> String {
    match written.parse::<u64>() {
        Ok(days) => format!("{}x25", days * 86_400),
        Err(_) => written.to_owned(),
    }
}

fn test_of((series, written, alerts): &Case) -> String {
    let mut text = format!(
        "  - interval: 1m\n    input_series:\n      - {{series: \"{series}\", values: '{}'}}\n    \
         promql_expr_test:\n      \
         - expr: count by (alertname) (ALERTS{{alertstate='firing'}})\n        \
         eval_time: 20m\n        exp_samples:\n",
        values(written)
    );
    for alert in *alerts {
        let labels = format!("{{alertname=\"{alert}\"}}");
        writeln!(text, "          - {{labels: '{labels}', value: 1}}").unwrap();
    }
    text
}

#[test]
fn the_alerts_fire_for_what_they_name() {
    let alerts = Path::new(env!("CARGO_MANIFEST_DIR")).join("prometheus/alerts.yml");
    let tests: String = CASES.iter().map(test_of).collect();
    let text = format!("rule_files: ['{}']\ntests:\n{tests}", alerts.display());
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("test.yml");
    std::fs::write(&file, &text).unwrap();
    let mut promtool = Command::new("promtool");
    let said = promtool.args(["test", "rules"]).arg(&file).output();
    let said = said.expect("promtool comes with the package prometheus");
    let report = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.status.success(), "{report}\n{text}");
}
