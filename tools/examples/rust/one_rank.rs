//! Fits a matrix to a teacher on one rank. The loss must fall below a twentieth of its first value.
//!   rustc --edition 2021 -L FOLDER one_rank.rs && LD_LIBRARY_PATH=FOLDER ./one_rank
//!
//! The structs declare only the fields that the program sets, followed by zeros. muonrt accepts a struct
//! that is larger than its own if the bytes that it does not know are zero.
use std::ffi::CStr;
use std::os::raw::{c_char, c_int, c_void};
use std::ptr::{null, null_mut};

#[repr(C)]
struct Group {
    struct_size: u32,
    role: i32,
    name: *const c_char,
    lr_factor: f64,
    weight_decay: f64,
    rest: [u64; 64],
}

#[repr(C)]
struct Param {
    struct_size: u32,
    group: i32,
    name: *const c_char,
    ndim: i32,
    dtype: i32, // f32 by default
    shape: *const i64,
    layout: *const c_void, // null: not sharded
    local_shape: *const i64,
    data: *mut f32,
    grad: *const f32,
    rest: [u64; 64],
}

#[repr(C)]
struct StepArgs {
    struct_size: u32,
    reserved: i32,
    lr: f64,
    rest: [u64; 64],
}

#[link(name = "muonrt")]
extern "C" {
    fn muonrt_get_last_error() -> *const c_char;
    fn muonrt_comm_create_self(comm: *mut *mut c_void) -> c_int;
    fn muonrt_comm_destroy(comm: *mut c_void);
    fn muonrt_group_init_muon_sized(group: *mut Group, size: u32);
    fn muonrt_param_init_sized(param: *mut Param, size: u32);
    fn muonrt_step_args_init_sized(args: *mut StepArgs, size: u32);
    fn muonrt_optimizer_create(
        optimizer: *mut *mut c_void, comm: *mut c_void, options: *const c_void, groups: *const Group,
        n_groups: i32, params: *const Param, n_params: i64) -> c_int;
    fn muonrt_optimizer_step(report: *mut c_void, optimizer: *mut c_void, args: *const StepArgs) -> c_int;
    fn muonrt_optimizer_destroy(optimizer: *mut c_void);
}

/// Panics with the library's message if `status` is an error.
fn check(status: c_int) {
    if status != 0 {
        panic!("{}", unsafe { CStr::from_ptr(muonrt_get_last_error()) }.to_string_lossy());
    }
}

/// Returns a struct with its defaults, from one of the _init_sized functions.
fn filled<T>(init: unsafe extern "C" fn(*mut T, u32)) -> T {
    unsafe {
        let mut out = std::mem::zeroed();
        init(&mut out, std::mem::size_of::<T>() as u32);
        out
    }
}

const ROWS: usize = 8;
const COLS: usize = 12;
const STEPS: i32 = 200;

/// Returns the squared distance to the teacher, and its gradient.
fn backward(weights: &[f32], gradient: &mut [f32]) -> f32 {
    let mut loss = 0.0;
    for i in 0..ROWS * COLS {
        let error = weights[i] - ((i * 37 + i / COLS * 11) % 23) as f32 / 11.0 + 1.0;
        loss += error * error;
        gradient[i] = 2.0 * error;
    }
    loss
}

fn main() {
    let (mut comm, mut optimizer) = (null_mut(), null_mut());
    let (mut weights, mut gradient) = (vec![0.0; ROWS * COLS], vec![0.0; ROWS * COLS]);
    let shape = [ROWS as i64, COLS as i64];
    let mut group = filled(muonrt_group_init_muon_sized);
    group.weight_decay = 0.0;
    let mut param = filled(muonrt_param_init_sized);
    param.name = b"w\0".as_ptr().cast();
    param.ndim = 2;
    param.shape = shape.as_ptr();
    param.data = weights.as_mut_ptr(); // updated in place
    param.grad = gradient.as_ptr(); // read by each step
    unsafe {
        check(muonrt_comm_create_self(&mut comm));
        check(muonrt_optimizer_create(&mut optimizer, comm, null(), &group, 1, &param, 1));
    }
    let first = backward(&weights, &mut gradient);
    let mut last = first;
    for step in 0..STEPS {
        let mut args = filled(muonrt_step_args_init_sized);
        args.lr = 0.05 * (1.0 - f64::from(step) / f64::from(STEPS));
        unsafe { check(muonrt_optimizer_step(null_mut(), optimizer, &args)) };
        last = backward(&weights, &mut gradient);
    }
    println!("loss {first:.4} -> {last:.6}");
    unsafe {
        muonrt_optimizer_destroy(optimizer);
        muonrt_comm_destroy(comm);
    }
    assert!(last < first / 20.0);
}
