/* muonrt/base.h - what every muonrt header shares: version, status, dtypes, last error.
 * C99; no CUDA, NCCL or MPI type appears in any header of this folder. */
#ifndef MUONRT_BASE_H
#define MUONRT_BASE_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__) && !defined(MUONRT_STATIC)
#define MUONRT_API __attribute__((visibility("default")))
#else
#define MUONRT_API
#endif

#define MUONRT_VERSION_MAJOR 0
#define MUONRT_VERSION_MINOR 1
#define MUONRT_VERSION_PATCH 0
#define MUONRT_ABI 0 /* changes only when the ABI breaks; the soname follows it */

#ifdef __cplusplus
extern "C" {
#endif

/* Outcome of a call. Values are never renumbered; new ones join their decade. */
typedef int32_t muonrt_status_t;
enum muonrt_status {
  MUONRT_OK = 0,
  MUONRT_SKIPPED = 1, /* the step was voted down: a gradient was not finite; nothing changed */
  MUONRT_ERROR_INVALID_ARGUMENT = 10,
  MUONRT_ERROR_INVALID_STATE = 11,
  MUONRT_ERROR_NOT_SUPPORTED = 12,
  MUONRT_ERROR_CALLBACK = 13, /* a function of the caller's returned an error */
  MUONRT_ERROR_MISMATCH = 20, /* ranks disagree */
  MUONRT_ERROR_OUT_OF_MEMORY = 30,
  MUONRT_ERROR_DEVICE = 40,
  MUONRT_ERROR_COMM = 50,
  MUONRT_ERROR_TIMEOUT = 51,
  MUONRT_ERROR_ABORTED = 52,
  MUONRT_ERROR_UNDECIDED =
      60, /* a peer failed inside the vote: not committed here, perhaps there; muonrt/recover.h */
  MUONRT_ERROR_TORN = 61, /* an eager step failed after its vote: parameters are partly updated */
  MUONRT_ERROR_IO = 70,
  MUONRT_ERROR_CORRUPT = 71,
  MUONRT_ERROR_INTERNAL = 90
};

/* Every choice is an enum muonrt_x and a type muonrt_x_t, the int32_t that is stored. */

/* Element types of buffers. */
typedef int32_t muonrt_dtype_t;
enum muonrt_dtype { MUONRT_DTYPE_F32 = 1, MUONRT_DTYPE_BF16 = 2, MUONRT_DTYPE_F16 = 3 };

/* What a parameter is to the optimizer. Never inferred from a shape. */
typedef int32_t muonrt_role_t;
enum muonrt_role { MUONRT_ROLE_MUON = 1, MUONRT_ROLE_ADAMW = 2 };

/* NorMuon: which lines of the matrix (or part) have a second moment each. */
typedef int32_t muonrt_normuon_axis_t;
enum muonrt_normuon_axis {
  MUONRT_NORMUON_OFF = 0,
  MUONRT_NORMUON_ROWS = 1, /* the published form; does next to nothing on wide or square matrices */
  MUONRT_NORMUON_COLUMNS = 2,
  MUONRT_NORMUON_LONGER = 3 /* rows of a tall or square matrix, columns of a wide one */
};

/* "MUONRT_OK" and so on; "MUONRT_ERROR_UNKNOWN" for a value that is no status. Static storage.
 * Threads: any. */
MUONRT_API const char* muonrt_status_get_name(muonrt_status_t status);

/* Message of the last call of this thread that returned an error, or MUONRT_SKIPPED (which is none,
 * but has a reason); "" if there was none. Never NULL; valid until this thread's next call.
 * Threads: any; each has its own.
 */
MUONRT_API const char* muonrt_get_last_error(void);

/* Makes `message` (copied; NULL: "") this thread's muonrt_get_last_error and returns `status`: for
 * libraries that add functions to this ABI, as muonrt_mpi does. Threads: any. */
MUONRT_API muonrt_status_t muonrt_set_last_error(muonrt_status_t status, const char* message);

/* Structs that grow in later versions begin with `struct_size`, and grow only at the end. A program
 * fills one with muonrt_x_init(&x): every field its default, in as many bytes as the program's
 * headers give the struct. That is a macro over muonrt_x_init_sized, which bindings call with the
 * size of the struct that they know. NULL is accepted. Threads: any.
 *
 * A newer program with an older library: what the library does not know must be zero, as
 * muonrt_x_init leaves it, or the struct is refused; in structs that muonrt fills it stays as it
 * is.
 *
 * An older program with a newer library: nothing behind `struct_size` is read or written. From
 * version 1.0 on, fields behind it take their defaults; before, a struct that has grown is refused
 * in its older sizes (muonrt_transport_t is taken).
 *
 * Refused: INVALID_ARGUMENT. In an array the first element's struct_size is the stride of all. */

/* major * 10000 + minor * 100 + patch of the library that runs. Threads: any. */
MUONRT_API int32_t muonrt_get_version(void);

/* Versions, compiler, instruction set, devices and transports of this build, as JSON.
 * @param buffer    receives at most `capacity` bytes, always ended by a zero; NULL if that is 0.
 * @param needed    receives the length without the final zero, whatever the capacity; may be NULL.
 * Errors: INVALID_ARGUMENT if `buffer` is NULL and `capacity` is not 0. Threads: any. */
MUONRT_API muonrt_status_t muonrt_get_build_info(char* buffer, int64_t capacity, int64_t* needed);

#ifdef __cplusplus
}
#endif

#endif /* MUONRT_BASE_H */
