//! Attachment of the programs to interfaces, so that they remain when this process ends.

pub(crate) mod clsact;
pub(crate) mod link;
pub(crate) mod owned;

use std::fs;
use std::path::Path;

use aya::Ebpf;
use aya::maps::ProgramArray;
use aya::programs::links::{FdLink, LinkOrder, PinnedLink};
use aya::programs::tc::{self, SchedClassifierLink, TcAttachOptions};
use aya::programs::{ProgramError, ProgramInfo, SchedClassifier, TcAttachType};
use dysco_common::detour::program;
use serde::{Deserialize, Serialize};

use crate::error::{AgentError, AnyError};
use crate::hooks::{HANDLER, HOOKS, SERVED_HOOKS};
use crate::load::Loaded;
use crate::maps::{map_error, take};
use crate::pins::{filter_path, pin_path};
use crate::xdp;
use clsact::clsact_hook;

/// Method of attaching programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Attach {
    /// TCX if the kernel has it (6.6), else clsact.
    #[default]
    Auto,
    /// TCX: replaced without a gap.
    Tcx,
    /// A clsact filter.
    Clsact,
}

/// An interface, and how the programs are attached to it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Attached {
    /// The interface.
    pub interface: String,
    /// Its index; `None` while no interface of this name has the programs.
    pub index: Option<u32>,
    /// The method.
    pub attach: Attach,
    /// True if XDP sends relayed packets back there.
    pub xdp: bool,
}

/// Number of bytes of a program's name that the kernel keeps (`BPF_OBJ_NAME_LEN`).
const KEPT: usize = 15;

/// Attaches both programs to an interface, or replaces those of an earlier run, atomically under
/// TCX.
pub(crate) fn attach(
    loaded: &mut Loaded,
    dir: &Path,
    interface: &str,
    how: Attach,
) -> Result<Attached, AgentError> {
    let ebpf = loaded.for_interface(interface)?;
    let attach = attach_hooks(ebpf, dir, interface, how, &HOOKS)?;
    Ok(Attached {
        interface: interface.to_owned(),
        index: None,
        attach,
        xdp: false,
    })
}

/// Attaches programs to an interface, and removes those that an earlier run attached there by the other
/// method. Returns the method.
fn attach_hooks(
    ebpf: &mut Ebpf,
    dir: &Path,
    interface: &str,
    how: Attach,
    hooks: &[(&'static str, TcAttachType)],
) -> Result<Attach, AgentError> {
    let fail = |source| AgentError::Attach {
        interface: interface.to_owned(),
        source,
    };
    let mut by = |hook| try_all(ebpf, dir, interface, hooks, hook);
    let method = match how {
        Attach::Tcx => by(tcx_hook).map(|()| Attach::Tcx),
        Attach::Clsact => by(clsact_hook).map(|()| Attach::Clsact),
        Attach::Auto => by(tcx_hook).map(|()| Attach::Tcx).or_else(|e| {
            tracing::info!(interface, error = %e, "no TCX here, falling back to clsact");
            by(clsact_hook).map(|()| Attach::Clsact)
        }),
    };
    let method = method.map_err(fail)?;
    // Only now: a changed session's packets must not pass unchanged meanwhile.
    match method {
        Attach::Clsact => unpin(dir, interface, hooks),
        Attach::Tcx | Attach::Auto => remove_filters(dir, interface, hooks),
    }
    Ok(method)
}

/// Programs that continue those of the interfaces for sessions with a detour, and their places.
pub(crate) const DETOURS: [(u32, &str); 2] = [
    (program::EGRESS, "dysco_detour_out"),
    (program::INGRESS, "dysco_detour_in"),
];

/// Loads the programs for sessions with a detour. Those that continue the programs of the interfaces
/// replace those of an earlier run.
pub(crate) fn load_handlers(mut ebpf: Ebpf) -> Result<Ebpf, AgentError> {
    for (name, _) in HANDLER {
        load_classifier(&mut ebpf, name)?;
    }
    let mut places = ProgramArray::try_from(take(&mut ebpf, "DETOUR_PROGRAMS")?)
        .map_err(map_error("open", "DETOUR_PROGRAMS"))?;
    for (index, name) in DETOURS {
        let program = load_classifier(&mut ebpf, name)?;
        let fd = program.fd().map_err(program_error(name))?;
        places
            .set(index, fd, 0)
            .map_err(map_error("write", "DETOUR_PROGRAMS"))?;
    }
    Ok(ebpf)
}

/// Attaches the program for packets of handlers to a link, or replaces that of an earlier run.
pub(crate) fn attach_handler(
    loaded: &mut Ebpf,
    dir: &Path,
    interface: &str,
    how: Attach,
) -> Result<(), AgentError> {
    attach_hooks(loaded, dir, interface, how, &HANDLER).map(|_| ())
}

/// Attaches the programs of the packet plane's services to an interface, before the others, or
/// replaces those of an earlier run.
pub(crate) fn attach_served(
    loaded: &mut Loaded,
    dir: &Path,
    interface: &str,
    how: Attach,
) -> Result<(), AgentError> {
    let ebpf = loaded.for_interface(interface)?;
    for (name, _) in SERVED_HOOKS {
        // The kernel ends a link a moment after its pin is removed, and refuses the same program
        // until then: load a new copy. An error of `unload` means that it is not loaded.
        let _ = classifier(ebpf, name)?.unload();
        load_classifier(ebpf, name)?;
    }
    attach_hooks(ebpf, dir, interface, how, &SERVED_HOOKS).map(|_| ())
}

/// Takes the programs of the packet plane's services off an interface.
pub(crate) fn detach_served(dir: &Path, interface: &str) {
    detach_hooks(dir, interface, &SERVED_HOOKS);
}

fn classifier<'a>(
    ebpf: &'a mut Ebpf,
    name: &'static str,
) -> Result<&'a mut SchedClassifier, AgentError> {
    let program = ebpf.program_mut(name).ok_or(AgentError::Missing(name))?;
    program.try_into().map_err(program_error(name))
}

pub(crate) fn load_classifier<'a>(
    ebpf: &'a mut Ebpf,
    name: &'static str,
) -> Result<&'a mut SchedClassifier, AgentError> {
    let program = classifier(ebpf, name)?;
    program.load().map_err(program_error(name))?;
    Ok(program)
}

fn program_error(name: &'static str) -> impl Fn(ProgramError) -> AgentError {
    move |source| AgentError::Program {
        name,
        source: Box::new(source),
    }
}

/// Takes the program for packets of handlers off a link.
pub(crate) fn detach_handler(dir: &Path, interface: &str) {
    detach_hooks(dir, interface, &HANDLER);
}

fn detach_hooks(dir: &Path, interface: &str, hooks: &[(&str, TcAttachType)]) {
    // With TCX there is no filter, and with clsact no link.
    remove_filters(dir, interface, hooks);
    unpin(dir, interface, hooks);
}

/// Removes the filters of programs. An error means that there is none.
fn remove_filters(dir: &Path, interface: &str, hooks: &[(&str, TcAttachType)]) {
    for (name, kind) in hooks {
        let _ = tc::qdisc_detach_program(interface, *kind, name);
        let _ = fs::remove_file(filter_path(dir, interface, name));
    }
}

/// Removes the pinned links of programs, and with them the links. An error means that there is none.
fn unpin(dir: &Path, interface: &str, hooks: &[(&str, TcAttachType)]) {
    for (name, _) in hooks {
        let _ = fs::remove_file(pin_path(dir, interface, name));
    }
}

type Hook =
    fn(&mut SchedClassifier, &Path, &str, &'static str, TcAttachType) -> Result<(), AnyError>;

fn try_all(
    ebpf: &mut Ebpf,
    dir: &Path,
    interface: &str,
    hooks: &[(&'static str, TcAttachType)],
    hook: Hook,
) -> Result<(), AnyError> {
    for &(name, kind) in hooks {
        let program: &mut SchedClassifier = ebpf
            .program_mut(name)
            .ok_or(AgentError::Missing(name))?
            .try_into()?;
        hook(program, dir, interface, name, kind)?;
    }
    Ok(())
}

fn tcx_hook(
    program: &mut SchedClassifier,
    dir: &Path,
    interface: &str,
    name: &'static str,
    kind: TcAttachType,
) -> Result<(), AnyError> {
    let path = pin_path(dir, interface, name);
    if path.exists() {
        if link::is_on(&path, interface) {
            let link: FdLink = PinnedLink::from_pin(&path)?.into();
            match program.attach_to_link(SchedClassifierLink::try_from(link)?) {
                // The pin alone keeps the link: it ends when the pin is removed.
                Ok(id) => {
                    drop(program.take_link(id)?);
                    return Ok(());
                }
                Err(e) => tracing::info!(interface, program = name, error = %e, "attaching anew"),
            }
        }
        fs::remove_file(&path)?;
    }
    // If another program ends a packet's run, the programs behind it do not see the packet.
    let options = TcAttachOptions::TcxOrder(LinkOrder::first());
    let id = program.attach_with_options(interface, kind, options)?;
    let link: FdLink = program.take_link(id)?.try_into()?;
    link.pin(&path)?;
    Ok(())
}

/// Returns the names of the TCX programs that run before the one with this name.
pub(crate) fn before(name: &str, in_order: &[ProgramInfo]) -> Vec<String> {
    let names = in_order
        .iter()
        .map(|p| p.name_as_str().unwrap_or("?").to_owned());
    // The kernel keeps 15 bytes of a name.
    let kept = |name: &str| name.get(..KEPT).unwrap_or(name).to_owned();
    let (short, served) = (kept(name), SERVED_HOOKS.map(|(name, _)| kept(name)));
    names
        .take_while(|other| *other != short)
        .filter(|other| !served.contains(other))
        .collect()
}

/// Takes the programs off an interface.
pub(crate) fn detach(dir: &Path, interface: &str) {
    detach_hooks(dir, interface, &HOOKS);
    detach_served(dir, interface);
    // An error means that there is none.
    let _ = fs::remove_file(pin_path(dir, interface, xdp::PROGRAM));
}

/// Takes all programs off the interfaces and removes the pins. No session is translated
/// afterwards.
pub(crate) fn detach_all(dir: &Path, interfaces: &[String]) {
    for interface in interfaces {
        detach(dir, interface);
    }
    let _ = fs::remove_dir_all(dir);
}
