//! The stack of functions that call each other. The kernel adds it up along the deepest call
//! chain (`check_max_stack_depth`, kernel/bpf/verifier.c). Before 6.9 it rounds to 32 bytes,
//! later to 16: the present kernel may accept a program that an older one refuses.

use std::collections::{BTreeMap, BTreeSet};

use aya_obj::Object;
use aya_obj::generated::bpf_insn;

/// The limit `MAX_BPF_STACK`.
const MOST: u32 = 512;
/// The coarser rounding.
const STEP: u32 = 32;

/// `BPF_CALL`; it calls another function if the source is `BPF_PSEUDO_CALL`.
const CALL: u8 = 0x85;
const PSEUDO_CALL: u8 = 1;
/// Opcodes that copy a register, and that add a constant to one.
const MOVE: u8 = 0xbf;
const ADD: u8 = 0x07;
/// Instruction classes: a load, and the two that store.
const LOAD: u8 = 1;
const STORES: [u8; 2] = [2, 3];
/// Register of the frame pointer.
const FRAME: u8 = 10;

/// Greatest distance below the frame pointer that a function reaches, by it or by a copy of it.
fn depth(function: &[bpf_insn]) -> u32 {
    let mut copies = BTreeSet::new();
    let mut deepest = 0;
    for i in function {
        let class = i.code & 7;
        if class == LOAD && i.src_reg() == FRAME || STORES.contains(&class) && i.dst_reg() == FRAME
        {
            deepest = deepest.max(-i32::from(i.off));
        } else if i.code == MOVE && i.src_reg() == FRAME {
            copies.insert(i.dst_reg());
        } else if i.code == ADD && copies.remove(&i.dst_reg()) {
            deepest = deepest.max(-i.imm);
        }
    }
    deepest.unsigned_abs()
}

/// Index of the first instruction of the function that an instruction calls, if it calls one.
fn called(at: usize, i: &bpf_insn) -> Option<usize> {
    let calls = i.code == CALL && i.src_reg() == PSEUDO_CALL;
    calls.then(|| at.checked_add_signed(i.imm as isize + 1).unwrap())
}

/// Returns the greatest stack depth of a function of the program and those that it calls.
fn deepest(program: &[bpf_insn], begins: &BTreeSet<usize>, at: usize) -> u32 {
    let ends = begins.range(at + 1..).next().copied();
    let end = ends.unwrap_or(program.len());
    let function = &program[at..end];
    let calls = (at..end).filter_map(|i| called(i, &program[i]));
    let calls = calls.map(|callee| deepest(program, begins, callee));
    depth(function).max(1).next_multiple_of(STEP) + calls.max().unwrap_or(0)
}

/// Returns that depth for each program.
fn of_all(object: &[u8]) -> BTreeMap<String, u32> {
    let mut object = Object::parse(object).unwrap();
    let sections = object.functions.keys().map(|(section, _)| *section);
    object.relocate_calls(&sections.collect()).unwrap();
    let programs = object.programs.iter().map(|(name, program)| {
        let linked = &object.functions[&program.function_key()].instructions;
        let calls = linked.iter().enumerate();
        let mut begins: BTreeSet<usize> = calls.filter_map(|(at, i)| called(at, i)).collect();
        begins.insert(0);
        (name.clone(), deepest(linked, &begins, 0))
    });
    programs.collect()
}

/// Returns the frame of each function that is large, for the report of a failure.
fn frames(object: &[u8]) -> BTreeMap<String, u32> {
    let object = Object::parse(object).unwrap();
    let functions = object.functions.values();
    let frames = functions.map(|f| (f.name.clone(), depth(&f.instructions)));
    frames.filter(|(_, frame)| *frame >= 64).collect()
}

#[test]
fn older_kernels_have_room_for_the_stack_too() {
    let stacks = of_all(dysco_agent::object());
    assert!(stacks["dysco_egress"] > MOST / 2, "{stacks:?}: not counted");
    let fits = stacks.values().all(|stack| *stack <= MOST);
    let frames = frames(dysco_agent::object());
    assert!(fits, "{stacks:?}; frames: {frames:?}");
}
