/**
 * @file muonrt/base.h
 * Definitions that all muonrt headers share: versions, status codes, enums, error messages and the
 * log.
 *
 * All headers are C99, except those with the suffix .hpp, which are C++17. Only muonrt/mpi_comm.h
 * includes <mpi.h>. No header includes a CUDA or NCCL header.
 *
 * @par Structs with struct_size
 * Structs that may grow in later versions begin with `struct_size`, and new fields are added only
 * at the end. Before you set fields, call the struct's init macro, for example
 * muonrt_transport_init(&transport). The macro sets `struct_size` and sets every other field to its
 * default. To do this, the macro calls a function whose name ends in `_sized`. Language bindings
 * call this function directly and pass the size of their own declaration of the struct.
 *   - If the program was compiled with headers that are newer than the library, a struct may have
 *     fields that the library does not support. The init macro sets these fields to zero. If they
 *     are not zero in a struct that you pass to a function, the function returns
 *     MUONRT_ERROR_INVALID_ARGUMENT. When the library fills a struct, it leaves these fields
 *     unchanged.
 *   - If the program was compiled with headers that are older than the library, the library
 *     accesses only the first `struct_size` bytes of a struct. Before version 1.0, a struct with
 *     fewer fields than in the library's own headers is rejected with
 *     MUONRT_ERROR_INVALID_ARGUMENT; only a muonrt_transport_t may have fewer. From version 1.0 on,
 *     the library uses the defaults for missing fields.
 *   - In an array of structs, the `struct_size` of the first element applies to every element.
 *
 * Reserved fields must be 0.
 *
 * @par Enums
 * Each enum `muonrt_x` has a companion type `muonrt_x_t`, which is an int32_t. Struct fields have
 * the companion type. Function parameters have the type `enum muonrt_x`, so the compiler can warn
 * about a value of a different enum. Status codes always have the type muonrt_status_t, because a
 * newer library may return values that the program's headers do not declare. The numeric value of
 * an enumerator never changes.
 *
 * @par Threads and collective functions
 * Each function's comment states which threads may call it. "Threads: any" means any thread at any
 * time. "One at a time per optimizer" means that only one thread at a time may be inside a call
 * with the same optimizer. A collective function must be called on all ranks that its comment
 * names, because these ranks communicate during the call.
 *
 * @par Terms
 *   - The owner of a matrix is the rank that orthogonalizes it in a step. The owner gathers the
 *     shards of the matrix from the ranks that hold them, and sends the update back to these ranks.
 *   - A replica is one complete copy of a tensor, either on one rank or sharded over multiple
 *     ranks.
 *   - A chunk is a group of matrices that a step gathers, orthogonalizes and returns together.
 *   - The ranks vote on each step: each rank reports whether its part of the step was successful.
 *     If all ranks report success, they commit the step, which means that they write the new
 *     parameters and state. Otherwise no rank commits it.
 *   - Master weights are f32 copies of bf16 parameters. A step updates the master weights and
 *     rounds them to obtain the parameters.
 *   - The state of a parameter is everything that the optimizer stores for it between steps:
 *     momentum, moments and master weights.
 */
#ifndef MUONRT_BASE_H
#define MUONRT_BASE_H

#include <stddef.h>
#include <stdint.h>

/** Marks a function that the shared library exports. Empty if MUONRT_STATIC is defined. */
#if defined(__GNUC__) && !defined(MUONRT_STATIC)
#define MUONRT_API __attribute__((visibility("default")))
#else
#define MUONRT_API
#endif

/** Major version of these headers. */
#define MUONRT_VERSION_MAJOR 0

/** Minor version of these headers. */
#define MUONRT_VERSION_MINOR 1

/** Patch version of these headers. */
#define MUONRT_VERSION_PATCH 0

/** ABI version, which is part of the soname. From version 1.0 on, it changes if the ABI breaks. */
#define MUONRT_ABI 0

/**
 * True if the version of these headers is at least major.minor.patch. The macro can be used in
 * `#if`. muonrt_get_version() returns the version of the library at run time.
 */
#define MUONRT_VERSION_AT_LEAST(major, minor, patch)                                   \
  (MUONRT_VERSION_MAJOR * 10000 + MUONRT_VERSION_MINOR * 100 + MUONRT_VERSION_PATCH >= \
   (major)*10000 + (minor)*100 + (patch))

#ifdef __cplusplus
extern "C" {
#endif

/** Status code that a call returns: one of the values of enum muonrt_status. */
typedef int32_t muonrt_status_t;
enum muonrt_status {
  /** The call was successful. */
  MUONRT_OK = 0,

  /**
   * All ranks have skipped the step because of a non-finite value, for example in a gradient.
   * Parameters and state are unchanged.
   */
  MUONRT_SKIPPED = 1,

  /** An argument is invalid; the message names it. */
  MUONRT_ERROR_INVALID_ARGUMENT = 10,

  /** The call is not allowed in the current state of the object or the process. */
  MUONRT_ERROR_INVALID_STATE = 11,

  /** The call is not supported by this build, on this machine or with these options. */
  MUONRT_ERROR_NOT_SUPPORTED = 12,

  /** A function that the caller has passed to muonrt returned an error. */
  MUONRT_ERROR_CALLBACK = 13,

  /** Arguments or versions differ between ranks, although they must be equal. */
  MUONRT_ERROR_MISMATCH = 20,

  /** Host or device memory could not be allocated. */
  MUONRT_ERROR_OUT_OF_MEMORY = 30,

  /** A GPU or its driver reported an error. */
  MUONRT_ERROR_DEVICE = 40,

  /** A communicator has failed, or a peer is no longer reachable. */
  MUONRT_ERROR_COMM = 50,

  /** An operation did not complete before its timeout. */
  MUONRT_ERROR_TIMEOUT = 51,

  /**
   * A rank has called muonrt_comm_abort(), or a function that the caller has passed to muonrt has
   * ended the thread on which it ran.
   */
  MUONRT_ERROR_ABORTED = 52,

  /**
   * A peer failed during the vote on a step. This rank has not committed the step, but other ranks
   * may have committed it. muonrt/recover.h explains how to continue.
   */
  MUONRT_ERROR_UNDECIDED = 60,

  /**
   * A step failed after the ranks had voted to commit it, so the parameters may be partly updated.
   * This error is most likely with MUONRT_COMMIT_EAGER (muonrt/tuning.h).
   */
  MUONRT_ERROR_TORN = 61,

  /** A file or folder could not be read or written. */
  MUONRT_ERROR_IO = 70,

  /** The content of a file is damaged. */
  MUONRT_ERROR_CORRUPT = 71,

  /** A bug in muonrt. Any function may return this status; please report the message. */
  MUONRT_ERROR_INTERNAL = 90
};

/** Element type of a buffer. */
typedef int32_t muonrt_dtype_t;
enum muonrt_dtype { MUONRT_DTYPE_F32 = 1, MUONRT_DTYPE_BF16 = 2, MUONRT_DTYPE_F16 = 3 };

/**
 * A tensor in the caller's memory. The struct has the same memory layout as DLPack's DLTensor, so
 * you can cast a `DLTensor*` to a `muonrt_dltensor_t*`.
 */
typedef struct muonrt_dltensor {
  /** Start of the memory. The first element is `byte_offset` bytes after this address. */
  char* data;

  /** Type of the memory: 1 (host), 2 (CUDA), 3 (pinned host memory) or 13 (CUDA managed memory). */
  int32_t device_type;

  /** Index of the device. */
  int32_t device_id;

  /** Number of dimensions. */
  int32_t ndim;

  /** Type of the elements: 2 (float) or 4 (bfloat). */
  uint8_t type_code;

  /** Size of an element in bits. */
  uint8_t type_bits;

  /** Number of lanes; 1 for scalar elements. */
  uint16_t type_lanes;

  /** Sizes of the `ndim` dimensions. */
  int64_t* shape;

  /** Strides of the `ndim` dimensions, in elements. NULL means row-major and contiguous. */
  int64_t* strides;

  /** Distance from `data` to the first element, in bytes. */
  uint64_t byte_offset;
} muonrt_dltensor_t;

/**
 * The role of a parameter: the algorithm that updates it. You choose the role of each group, and
 * the functions of muonrt/routing.h can suggest a role based on the name of a parameter.
 */
typedef int32_t muonrt_role_t;
enum muonrt_role { MUONRT_ROLE_MUON = 1, MUONRT_ROLE_ADAMW = 2 };

/**
 * Selects whether NorMuon normalizes the rows or the columns of a matrix. NorMuon keeps one second
 * moment for each row or for each column.
 */
typedef int32_t muonrt_normuon_axis_t;
enum muonrt_normuon_axis {
  MUONRT_NORMUON_OFF = 0,

  /**
   * One second moment per row, as in the NorMuon paper. This value has little effect on wide and
   * square matrices, because their rows have about the same norm after orthogonalization.
   */
  MUONRT_NORMUON_ROWS = 1,

  /** One second moment per column. */
  MUONRT_NORMUON_COLUMNS = 2,

  /** One second moment per row of a tall or square matrix, and per column of a wide one. */
  MUONRT_NORMUON_LONGER = 3
};

/**
 * The attention projection that a weight implements. It determines how QK-clip scales the rows of
 * the weight; see muonrt_qk_clip_t in muonrt/param.h.
 */
typedef int32_t muonrt_qk_kind_t;
enum muonrt_qk_kind {
  /** QK-clip does not change the weight. */
  MUONRT_QK_NONE = 0,

  /** Query projection, such as wq or q_proj. */
  MUONRT_QK_QUERY = 1,

  /** Key projection, such as wk or k_proj. */
  MUONRT_QK_KEY = 2,

  /** Query up-projection of multi-head latent attention (MLA), such as wq_b or q_b_proj. */
  MUONRT_QK_MLA_QUERY = 3,

  /** Key-value up-projection of MLA, such as wkv_b or kv_b_proj. */
  MUONRT_QK_MLA_KEY_VALUE = 4,

  /**
   * Fused QKV projection, stored as a sequence of attention groups. Each group contains the rows of
   * its query heads, followed by the rows of its key head and those of its value head.
   */
  MUONRT_QK_QKV = 5,

  /**
   * Fused QKV projection, stored as three blocks: the rows of all query heads, the rows of all key
   * heads, and the rows of all value heads.
   */
  MUONRT_QK_QKV_BLOCKS = 6,

  /** muonrt reads the kind and the layer from the name of the parameter; see muonrt_qk_clip_t. */
  MUONRT_QK_FROM_NAME = 7
};

/**
 * Returns the name of a status code, for example "MUONRT_OK".
 *
 * Threads: any. Collective: no.
 *
 * @param[in] status  A status code.
 *
 * @return The name, in static storage; "MUONRT_ERROR_UNKNOWN" for an unknown code. Never NULL.
 */
MUONRT_API const char* muonrt_status_get_name(muonrt_status_t status);

/**
 * Returns the message of the last call in this thread that returned an error or MUONRT_SKIPPED.
 *
 * Threads: any; each thread has its own message. Collective: no.
 *
 * @return The message, at most 4095 bytes; "" if no call has returned an error or MUONRT_SKIPPED.
 * Never NULL. The string is valid until the thread calls another muonrt function.
 */
MUONRT_API const char* muonrt_get_last_error(void);

/**
 * Sets the message that muonrt_get_last_error() returns in the calling thread.
 *
 * Libraries that add functions to muonrt, such as muonrt_mpi, call this function to report their
 * errors.
 *
 * Threads: any. Collective: no.
 *
 * @param[in] status   The status that the function returns.
 * @param[in] message  The message; muonrt copies at most 4095 bytes. NULL means "".
 *
 * @return `status`.
 */
MUONRT_API muonrt_status_t muonrt_set_last_error(muonrt_status_t status, const char* message);

/** Importance of a log message. */
typedef int32_t muonrt_log_level_t;
enum muonrt_log_level {
  /** No messages. */
  MUONRT_LOG_OFF = 0,

  /** A communicator or a step has failed. */
  MUONRT_LOG_ERROR = 1,

  /** A step was skipped or rejected, or muonrt uses a slower method than the requested one. */
  MUONRT_LOG_WARNING = 2,

  /**
   * Rare events, such as a recovery, a checkpoint, or the creation of a communicator or an
   * optimizer.
   */
  MUONRT_LOG_INFO = 3,

  /** Every committed step. */
  MUONRT_LOG_DEBUG = 4
};

/**
 * Receives a log message.
 *
 * The function runs on the thread that logs the message, which may be one of muonrt's threads. Only
 * one thread at a time calls the function. It should return quickly, because other threads that log
 * a message wait until it returns. It must not call muonrt, throw, or end the thread. It must not
 * wait for a thread that is inside a muonrt call, because that thread may be waiting to call this
 * function.
 *
 * @param[in] state    The pointer that was passed to muonrt_set_log().
 * @param[in] level    The level of the message, MUONRT_LOG_ERROR to MUONRT_LOG_DEBUG.
 * @param[in] message  UTF-8 text without a newline at the end; valid until the function returns.
 */
typedef void (*muonrt_log_function_t)(void* state, enum muonrt_log_level level,
                                      const char* message);

/**
 * Sets the function that receives the log messages of this process. If no function is set, muonrt
 * logs nothing, because muonrt itself never prints messages.
 *
 * The call replaces the previous function, and waits until other threads have returned from it.
 * After the call has returned, muonrt does not call the previous function again, so you may free
 * its state. If another thread logs a message during the call, the previous or the new function
 * receives the message, or the message is lost.
 *
 * A child process that was created by `fork()` logs nothing until it calls muonrt_set_log().
 *
 * Threads: any. Collective: no.
 *
 * @param[in] function  The function; NULL to log nothing.
 * @param[in] state     The function's first argument; may be NULL.
 * @param[in] level     The least important level to log. For example, with MUONRT_LOG_WARNING the
 *                      function receives warnings and errors.
 *
 * @return MUONRT_OK, or
 *   - MUONRT_ERROR_INVALID_ARGUMENT: `level` is unknown;
 *   - MUONRT_ERROR_INVALID_STATE: muonrt_set_log() was called from inside the log function;
 *   - MUONRT_ERROR_OUT_OF_MEMORY.
 */
MUONRT_API muonrt_status_t muonrt_set_log(muonrt_log_function_t function, void* state,
                                          enum muonrt_log_level level);

/**
 * Returns the version of the library at run time.
 *
 * Threads: any. Collective: no.
 *
 * @return major * 10000 + minor * 100 + patch.
 */
MUONRT_API int32_t muonrt_get_version(void);

/**
 * Describes this build as JSON: versions, compiler, instruction set, devices and transports.
 *
 * To learn the length of the text, call the function with capacity 0 first.
 *
 * Threads: any. Collective: no.
 *
 * @param[out] buffer    Receives at most `capacity` bytes, including a terminating zero; NULL if
 *                       `capacity` is 0.
 * @param[in]  capacity  Size of `buffer` in bytes, >= 0.
 * @param[out] needed    Length of the whole text in bytes without the terminating zero; may be
 *                       NULL.
 *
 * @return MUONRT_OK, or
 *   - MUONRT_ERROR_INVALID_ARGUMENT: `capacity` is below 0, or `buffer` is NULL and `capacity` is
 *     not 0;
 *   - MUONRT_ERROR_OUT_OF_MEMORY.
 */
MUONRT_API muonrt_status_t muonrt_get_build_info(char* buffer, int64_t capacity, int64_t* needed);

#ifdef __cplusplus
}
#endif

#endif /* MUONRT_BASE_H */
