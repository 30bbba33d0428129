use super::*;

fn parse(text: &str) -> Result<Policy, String> {
    Policy::parse(Path::new("policy.toml"), text).map_err(|e| e.to_string())
}

#[test]
fn the_first_rule_that_matches_decides() {
    let text = r#"
        [[rule]]
        destination = "10.0.3.1"
        ports = [22, "8000-8100"]
        chain = []

        [[rule]]
        name = "web"
        source = "10.0.1.0/24"
        destination = "10.0.3.0/24"
        chain = ["10.0.2.1", "10.0.4.1"]
        otherwise = "direct"
    "#;
    let policy = parse(text).unwrap();
    let find = |from: &str, to: &str| {
        let opener = Opener::default();
        policy.find(from.parse().unwrap(), to.parse().unwrap(), &opener)
    };
    assert_eq!(find("10.0.1.1:1000", "10.0.3.1:8050"), Some(0));
    assert_eq!(find("10.0.1.1:1000", "10.0.3.1:8101"), Some(1));
    assert_eq!(find("10.0.2.1:1000", "10.0.3.1:8101"), None);
    assert_eq!(find("[fd00::1]:1000", "[fd00::3]:8101"), None);
    assert_eq!(policy.names().collect::<Vec<_>>(), ["#1", "web"]);
    let meet: IpAddr = "10.0.4.1".parse().unwrap();
    assert!(
        policy
            .acquaintances()
            .iter()
            .all(|(_, after)| *after == meet)
    );
}

#[test]
fn a_prefix_in_the_form_of_ipv6_is_one_of_ipv4() {
    let text = r#"
        [[rule]]
        source = "::ffff:10.0.0.0/104"
        destination = "::ffff:10.0.3.1"
        chain = ["10.0.2.1"]
    "#;
    let policy = parse(text).unwrap();
    assert_eq!(policy.rules[0].source.unwrap().to_string(), "10.0.0.0/8");
    assert_eq!(
        policy.rules[0].destination.unwrap().to_string(),
        "10.0.3.1/32"
    );
    let [from, to] = ["10.0.1.1:1000", "10.0.3.1:80"].map(|at| at.parse().unwrap());
    assert_eq!(policy.find(from, to, &Opener::default()), Some(0));
    let host_bits = parse(&text.replace("10.0.0.0/104", "10.0.0.1/104"));
    assert!(host_bits.unwrap_err().contains("did you mean 10.0.0.0/8?"));
}

#[test]
fn both_forms_of_a_service_are_the_same() {
    let of = |chain: &str| parse(&format!("[[rule]]\nchain = {chain}\n"));
    let plus = of(r#"["+shape=up=5M,down=off", "10.3.0.2", "+count"]"#).unwrap();
    let call = of(r#"["shape(up=5M, down=off)", "10.3.0.2", "count()"]"#).unwrap();
    assert_eq!(plus.rules[0].chain, call.rules[0].chain);
    let error = of(r#"["shape(rate)"]"#).unwrap_err();
    assert!(error.contains("'shape(rate)' is no service"), "{error}");
}

#[test]
fn rules_about_some_programs_match_those_alone() {
    let text = r#"
        [[rule]]
        user = 7
        cgroup = "system.slice"
        chain = ["+crypt"]

        [[rule]]
        user = "root"
        chain = ["10.0.2.1"]
    "#;
    let policy = parse(text).unwrap();
    assert!(policy.has_openers());
    let find = |user: &str, cgroup: &str| {
        let opener = Opener {
            user: user.parse().ok(),
            cgroup: cgroup.parse().ok(),
        };
        let [from, to] = ["10.0.1.1:1000", "10.0.3.1:80"].map(|at| at.parse().unwrap());
        policy.find(from, to, &opener)
    };
    assert_eq!(find("7", "system.slice/a.service"), Some(0));
    assert_eq!(find("7", ""), None);
    assert_eq!(find("root", "system.slice"), Some(1));
    assert_eq!(find("", ""), None);
}

#[test]
fn what_cannot_be_is_refused_where_it_stands() {
    for (rule, why) in [
        (r#"chain = ["10.0.0.1", "10.0.0.1"]"#, "twice"),
        (r#"chain = ["10.0.0.1", "fd00::1"]"#, "mixes"),
        (
            "destination = \"10.0.0.0/8\"\nchain = [\"fd00::1\"]",
            "mixes",
        ),
        (r#"chain = ["0.0.0.0"]"#, "no host"),
        ("chain = []\ncolour = 1", "colour"),
        ("chain = []\nports = [0]", "port"),
        ("chain = []\nuser = -1", "user"),
        ("chain = []\ncgroup = \"../a\"", "cgroup"),
        (
            r#"chain = ["1.0.0.1","1.0.0.2","1.0.0.3","1.0.0.4","1.0.0.5","1.0.0.6","1.0.0.7","1.0.0.8","1.0.0.9"]"#,
            "most",
        ),
    ] {
        let error = parse(&format!("[[rule]]\n{rule}\n")).unwrap_err();
        assert!(error.contains(why), "{error}");
        assert!(error.contains("line "), "{error}");
    }
    // The message states the place and the remedy.
    let second = "# ours\n\n[[rule]]\nchain = []\n\n[[rule]]\nname = \"b\"\n";
    for (rule, reported) in [
        (
            r#"chain = ["10.0.0.1", "10.0.0.1"]"#,
            "line 8, column 9: the chain holds 10.0.0.1 twice, and a session passes a host once; leave one out",
        ),
        (
            r#"chain = ["10.0.0.1", "fw1"]"#,
            "line 8, column 22: 'fw1' is no element of a chain, and names are not looked up; write a host's address, like",
        ),
        (
            r#"chain = ["10.0.0.1", "fd00::1"]"#,
            "line 6, column 1: it mixes IPv4 and IPv6; write",
        ),
    ] {
        let error = parse(&format!("{second}{rule}\n")).unwrap_err();
        assert!(error.contains(reported), "{error}");
    }
    let none = Path::new("/nowhere/policy.toml");
    let source = io::ErrorKind::NotFound.into();
    let (what, path) = ("read", none.into());
    let reported = PolicyError::File { what, path, source }.to_string();
    assert!(
        reported.contains("; name a file that is there"),
        "{reported}"
    );
    let many = "[[rule]]\nchain = []\n".repeat(257);
    assert!(parse(&many).unwrap_err().contains("more than 256"));
    let own: IpAddr = "10.0.0.1".parse().unwrap();
    let through = parse("[[rule]]\nchain = [\"10.0.0.1\"]\n").unwrap();
    assert!(through.check_host(&[own]).is_err());
}

#[test]
fn a_host_leaves_itself_out_of_the_chains_of_its_fleet() {
    let own: IpAddr = "10.0.0.1".parse().unwrap();
    let place = Path::new("etcd:/dysco/policy");
    let of = |text: &str| Policy::of_fleet(place, text, &[own]);
    let hosts = |chain: &str| {
        let policy = of(&format!("[[rule]]\nchain = {chain}\n")).unwrap();
        let hosts = policy.rules[0].chain.hosts.iter();
        hosts.map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(hosts(r#"["10.0.0.1", "10.0.0.2"]"#), ["10.0.0.2"]);
    assert_eq!(hosts(r#"["10.0.0.1"]"#), [""; 0]);
    let error = of("[[rule]]\nchain = [\"fw1\"]\n").unwrap_err().to_string();
    assert!(error.contains("etcd:/dysco/policy, line 2"), "{error}");
}
