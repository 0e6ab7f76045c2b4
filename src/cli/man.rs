//! `ringway man`: manual pages, made from the same grammar as the help.

use std::path::Path;

use anyhow::Context;
use clap::{Command, CommandFactory};
use clap_mangen::Man;

use super::{Arguments, Console, exit};

/// Prints the main page, or writes all pages.
pub fn main(directory: Option<&Path>, console: &mut Console<'_>) -> anyhow::Result<u8> {
    let mut program = Arguments::command();
    program.build();
    let Some(directory) = directory else {
        return Ok(console.print_bytes(&page(&program, "ringway")?, exit::OK));
    };
    std::fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    let count = write(&program, "ringway", directory)?;
    console.say(format_args!("{count} pages are in {}", directory.display()));
    Ok(exit::OK)
}

/// A page for this command and, below its name, for each of its own.
fn write(command: &Command, name: &str, directory: &Path) -> anyhow::Result<usize> {
    let path = directory.join(format!("{name}.1"));
    std::fs::write(&path, page(command, name)?)
        .with_context(|| format!("cannot write {}", path.display()))?;
    let mut count = 1;
    for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
        count += write(below, &format!("{name}-{}", below.get_name()), directory)?;
    }
    Ok(count)
}

fn page(command: &Command, name: &str) -> anyhow::Result<Vec<u8>> {
    let mut page = Vec::new();
    let command = command.clone().version(env!("CARGO_PKG_VERSION"));
    Man::new(command).title(name.to_uppercase()).manual("Ringway").render(&mut page)?;
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::super::tests::printed;
    use super::*;

    #[test]
    fn every_command_has_its_page() {
        let directory = tempfile::tempdir().unwrap();
        let (code, _, _) = printed(|console| main(Some(directory.path()), console));
        assert_eq!(code.unwrap(), exit::OK);
        for (name, part) in [
            ("ringway", "ringway\\-conns(1)"),
            ("ringway-flows", "follow"),
            ("ringway-config-check", "exit code 78"),
            ("ringway-why", "file"),
        ] {
            let text = std::fs::read_to_string(directory.path().join(format!("{name}.1"))).unwrap();
            assert!(text.contains(".TH ") && text.contains(part), "{name}: {text}");
        }
        let (code, out, _) = printed(|console| main(None, console));
        assert!(code.unwrap() == exit::OK && out.contains(".SH NAME"), "{out}");
    }
}
