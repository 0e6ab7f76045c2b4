//! `ringway log`: which log lines a running proxy writes.

use super::admin::{Admin, query};
use super::arguments::LogArguments;
use super::{Console, exit};

/// Shows the filter, or changes it and shows the new one.
pub fn main(asked: &LogArguments, admin: &Admin, console: &mut Console<'_>) -> anyhow::Result<u8> {
    if asked.lasting.is_some() && asked.levels.is_empty() && !asked.reset {
        console.say("error: --for says how long a change lasts: which one?");
        return Ok(exit::USAGE);
    }
    let level = (!asked.levels.is_empty()).then(|| asked.levels.join(","));
    let seconds = asked.lasting.map(|lasting| lasting.as_secs().max(1).to_string());
    let path = query(
        "/logging",
        &[("reset", asked.reset.then_some("")), ("level", level.as_deref()), ("for", seconds.as_deref())],
    );
    Ok(console.print(&admin.post(&path)?, exit::OK))
}

#[cfg(test)]
mod tests {
    use super::super::admin::test::answering;
    use super::super::tests::printed;
    use super::*;
    use std::time::Duration;

    #[test]
    fn levels_go_as_they_were_said() {
        let answers =
            vec![("200 OK", "current log level is x\n".to_owned()), ("400 Bad Request", "no\nhelp\n".into())];
        let (admin, serving) = answering(answers);
        let levels = vec!["xds=debug".to_owned(), "access=off".to_owned()];
        let asked = LogArguments { levels, reset: true, lasting: Some(Duration::from_secs(600)) };
        let (code, out, _) = printed(|console| main(&asked, &admin, console));
        assert_eq!((code.unwrap(), out.as_str()), (exit::OK, "current log level is x\n"));
        let shown = LogArguments { levels: Vec::new(), reset: false, lasting: None };
        let (code, _, _) = printed(|console| main(&shown, &admin, console));
        assert_eq!(code.unwrap_err().to_string(), "no\nhelp");
        let requests = serving.join().unwrap();
        assert_eq!(requests[0], "POST /logging?reset=&level=xds%3Ddebug%2Caccess%3Doff&for=600 HTTP/1.0");
        assert_eq!(requests[1], "POST /logging HTTP/1.0");
        let nothing = LogArguments { lasting: asked.lasting, ..shown };
        let (code, _, err) = printed(|console| main(&nothing, &Admin::Port("127.0.0.1:1".into()), console));
        assert!(code.unwrap() == exit::USAGE && err.contains("--for"), "{err}");
    }
}
