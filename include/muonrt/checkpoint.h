/**
 * @file muonrt/checkpoint.h
 * Checkpoints: functions that save the parameters and the optimizer's state to a folder, and load
 * them to resume training.
 *
 * A checkpoint can be loaded on any number of ranks, with any mesh, placements and owners. It
 * consists of safetensors files with checksums, and of the JSON file manifest.json, which describes
 * them. This header includes muonrt/checkpoint_reader.h, which declares functions that read a
 * checkpoint without an optimizer.
 *
 * @code
 * check(muonrt_optimizer_save(optimizer, "run/state", NULL));
 * // ... later, with another optimizer that has the same parameters:
 * check(muonrt_optimizer_load(optimizer, "run/state", NULL));
 * @endcode
 *
 * Every function returns MUONRT_ERROR_INVALID_ARGUMENT if the optimizer is NULL or was destroyed,
 * and MUONRT_ERROR_INVALID_STATE in a child process that was forked after the optimizer was
 * created. Only the rank that makes such a call receives the error; in a collective call, the other
 * ranks wait until their timeout.
 */
#ifndef MUONRT_CHECKPOINT_H
#define MUONRT_CHECKPOINT_H

#include "muonrt/base.h"
#include "muonrt/checkpoint_reader.h"
#include "muonrt/optimizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Options of muonrt_optimizer_save(). Call muonrt_save_options_init() before you set fields. */
typedef struct muonrt_save_options {
  /** Size of the struct in bytes; set by muonrt_save_options_init(). */
  uint32_t struct_size;

  /**
   * 0 (default): save the parameters. 1: save only a hash of each parameter, with which
   * muonrt_optimizer_load() verifies the optimizer's parameters.
   */
  int32_t without_params;

  /** Number of checkpoints to keep in the folder, including the new one; >= 1. Default: 1. */
  int64_t keep;

  /**
   * 0 (default): return an error if the newest checkpoint in the folder belongs to a different
   * model, that is, if the names or shapes of the parameters differ. 1: replace that checkpoint.
   */
  int32_t overwrite;

  /** Reserved; 0. */
  int32_t reserved;
} muonrt_save_options_t;

/** Options of muonrt_optimizer_load(). Call muonrt_load_options_init() before you set fields. */
typedef struct muonrt_load_options {
  /** Size of the struct in bytes; set by muonrt_load_options_init(). */
  uint32_t struct_size;

  /**
   * 0 (default): load the parameters that the checkpoint contains, and compute the others from
   * their master weights. If the checkpoint contains neither a parameter nor its master weights,
   * the parameter must have the values that it had when the checkpoint was saved. 1: leave all
   * parameters unchanged. They must have the values that they had when the checkpoint was saved.
   */
  int32_t without_params;

  /**
   * 0 (default): reject a checkpoint whose parameters or kinds of state differ from the
   * optimizer's. 1: ignore parameters and state that only the checkpoint has, and initialize state
   * that the checkpoint lacks: moments and update counts with 0, master weights from the parameter.
   */
  int32_t partial;

  /** Reserved; 0. */
  int32_t reserved;

  /**
   * File name of a manifest in the folder, for example "manifest-0000000007-0000000000002000.json".
   * Set this field to load an older checkpoint that is still in the folder. Default: NULL, which
   * loads the newest checkpoint.
   */
  const char* manifest;
} muonrt_load_options_t;

/**
 * Sets every field of `options` to its default.
 *
 * Call it through the macro muonrt_save_options_init(), which passes the size. muonrt/base.h
 * explains how programs and libraries of different versions work together.
 *
 * Threads: any.
 *
 * @param[out] options  The struct to fill; NULL is accepted.
 * @param[in]  size     Size of the struct in bytes, as the program's headers declare it.
 */
MUONRT_API void muonrt_save_options_init_sized(muonrt_save_options_t* options, uint32_t size);
#define muonrt_save_options_init(options) \
  muonrt_save_options_init_sized((options), sizeof(muonrt_save_options_t))

/**
 * Sets every field of `options` to its default.
 *
 * Call it through the macro muonrt_load_options_init(), which passes the size.
 *
 * Threads: any.
 *
 * @param[out] options  The struct to fill; NULL is accepted.
 * @param[in]  size     Size of the struct in bytes, as the program's headers declare it.
 */
MUONRT_API void muonrt_load_options_init_sized(muonrt_load_options_t* options, uint32_t size);
#define muonrt_load_options_init(options) \
  muonrt_load_options_init_sized((options), sizeof(muonrt_load_options_t))

/**
 * Saves a checkpoint of the optimizer.
 *
 * The checkpoint contains the parameters, all state, the step number, the update counts, and the
 * seed and keys of stochastic rounding. If a parameter has f32 master weights, the checkpoint
 * usually contains only the master weights, and muonrt_optimizer_load() rounds them to obtain the
 * parameter. If the parameter differs from its rounded master weights, the checkpoint contains
 * both. With `without_params`, it contains a hash of each parameter instead of its values.
 * `saved_param_bytes` of muonrt_counters_t is the number of bytes that the parameters add to the
 * checkpoint.
 *
 * Each rank writes its part into one file in `folder`. Then rank 0 writes the new manifest.json
 * under a temporary name and renames it. Only this rename replaces the previous manifest.json, so
 * an interrupted save leaves the previous checkpoint intact.
 *
 * Threads: one at a time per optimizer. Collective: over the optimizer's ranks, between steps.
 * Blocking; each rank waits for all other ranks, up to `timeout_ms` of the optimizer's options.
 *
 * @par Rules
 *   - All ranks must see the same folder. The folder and its parents are created if they do not
 *     exist.
 *   - If the newest checkpoint in the folder belongs to a different model, the call returns an
 *     error; see `overwrite`.
 *   - The folder is locked while a checkpoint is being saved. If this or another process starts a
 *     second save to the folder before the first one has ended, the second save returns
 *     MUONRT_ERROR_IO. On a file system without locks, a second save is not detected.
 *   - The next successful save removes the files that a failed save has left in the folder.
 *   - On CUDA, the save waits for the work that is already queued on the default stream. If a
 *     non-blocking stream writes parameters, synchronize that stream before the call, because the
 *     default stream does not wait for it.
 *
 * @param[in] optimizer  The optimizer.
 * @param[in] folder     Path of the folder.
 * @param[in] options    Options, equal on all ranks; NULL for the defaults.
 *
 * @return MUONRT_OK, or the same error on every rank. The message names the rank and the file.
 *   - MUONRT_ERROR_IO: a file could not be written, a rank does not see the files of rank 0, or
 *     another save has locked the folder.
 *   - MUONRT_ERROR_INVALID_ARGUMENT: an option is out of range, `folder` is NULL or empty, or the
 *     folder holds a checkpoint of a different model.
 *   - MUONRT_ERROR_MISMATCH: the ranks have different options or step numbers.
 *   - MUONRT_ERROR_NOT_SUPPORTED: the newest checkpoint in the folder has a different format
 *     version.
 *   - MUONRT_ERROR_INVALID_STATE: a moment is not finite; a second moment is below 0; moments are
 *     not zero although the step number is 0; a background save is in progress; or an earlier error
 *     has made the optimizer unusable.
 *   - MUONRT_ERROR_OUT_OF_MEMORY: a rank could not allocate memory.
 *   - MUONRT_ERROR_DEVICE: a GPU reported an error.
 *   - MUONRT_ERROR_TIMEOUT: a rank did not take part, or the work on its default stream did not
 *     finish, before the timeout.
 *   - MUONRT_ERROR_COMM, _ABORTED: the communicator has failed or was aborted.
 *
 * The call never changes parameters or state. The optimizer may be unusable after
 * MUONRT_ERROR_DEVICE, _COMM, _TIMEOUT and _ABORTED; it remains usable after the other errors.
 * After an error, the folder holds the previous checkpoint, or the new one if rank 0 failed after
 * the rename of manifest.json.
 */
MUONRT_API muonrt_status_t muonrt_optimizer_save(muonrt_optimizer_t* optimizer, const char* folder,
                                                 const muonrt_save_options_t* options);

/**
 * Reserves host memory so that muonrt_optimizer_save_begin() can return before the files are
 * written.
 *
 * Call it once, after muonrt_optimizer_create(), with the options that you will use to save. The
 * memory is large enough for a copy of everything that this rank saves. It is not included in the
 * memory that muonrt_optimizer_describe_plan() prints, and muonrt_optimizer_destroy() releases it.
 *
 * Threads: one at a time per optimizer. Collective: no.
 *
 * @param[out] bytes      Number of bytes that this rank writes with these options; may be NULL.
 * @param[in]  optimizer  The optimizer.
 * @param[in]  options    The options that you will use to save; NULL for the defaults.
 *
 * @return MUONRT_OK, or
 *   - MUONRT_ERROR_INVALID_ARGUMENT: an option is out of range;
 *   - MUONRT_ERROR_INVALID_STATE: a save is in progress;
 *   - MUONRT_ERROR_OUT_OF_MEMORY.
 */
MUONRT_API muonrt_status_t muonrt_optimizer_save_reserve(int64_t* bytes,
                                                         muonrt_optimizer_t* optimizer,
                                                         const muonrt_save_options_t* options);

/**
 * Starts to save a checkpoint in the background.
 *
 * Copies the parameters and the state into the memory that muonrt_optimizer_save_reserve() has
 * reserved, and returns. A background thread then writes this rank's file while training continues.
 * The results of training do not change. If not enough memory is reserved, the call itself writes
 * the file before it returns.
 *
 * @code
 * muonrt_optimizer_save_reserve(NULL, optimizer, &save);     // once
 * muonrt_optimizer_save_begin(optimizer, "run/state", &save);
 * // ... more steps ...
 * muonrt_optimizer_save_wait(optimizer);                     // completes the checkpoint
 * @endcode
 *
 * Until muonrt_optimizer_save_wait() has returned, the previous checkpoint remains the newest one
 * in the folder, and no other save or load can start. If you destroy the optimizer without calling
 * muonrt_optimizer_save_wait(), the new checkpoint is discarded. A relative path is resolved
 * against the working directory at the time of this call.
 *
 * Threads: one at a time per optimizer. Collective: over the optimizer's ranks, between steps.
 * Blocking until every rank has copied its state.
 *
 * @param[in] optimizer  The optimizer.
 * @param[in] folder     Path of the folder; see muonrt_optimizer_save().
 * @param[in] options    Options, equal on all ranks; NULL for the defaults.
 *
 * @return The same statuses as muonrt_optimizer_save(). If a rank's file cannot be written in the
 * background, muonrt_optimizer_save_wait() returns the error.
 */
MUONRT_API muonrt_status_t muonrt_optimizer_save_begin(muonrt_optimizer_t* optimizer,
                                                       const char* folder,
                                                       const muonrt_save_options_t* options);

/**
 * Finishes a save that muonrt_optimizer_save_begin() has started.
 *
 * Waits until every rank has written its file, and then makes the new checkpoint the newest one in
 * the folder.
 *
 * Threads: one at a time per optimizer. Collective: over the optimizer's ranks, between steps.
 * Blocking; the timeout is that of muonrt_optimizer_save().
 *
 * @param[in] optimizer  The optimizer.
 *
 * @return The result of the save: one of the statuses of muonrt_optimizer_save().
 * MUONRT_ERROR_INVALID_STATE may also mean that no save was started.
 */
MUONRT_API muonrt_status_t muonrt_optimizer_save_wait(muonrt_optimizer_t* optimizer);

/**
 * Loads a checkpoint into the optimizer.
 *
 * The checkpoint may have been saved on any number of ranks, with any mesh, placements and owners.
 * With the same gradients, the results of later steps are bitwise identical to those of an
 * uninterrupted run. The gradients themselves may differ if the program sums them in a different
 * order, for example on a different number of ranks.
 *
 * The optimizer's parameters must have the same names, shapes, dtypes and roles as those in the
 * checkpoint, and the same kinds of state in the same dtypes. With `partial`, parameters and kinds
 * of state may be missing from the checkpoint or from the optimizer. The following may always
 * differ:
 *   - The momentum convention: heavy ball or EMA (with or without bias correction). If it differs,
 *     the momentum is converted by m_heavy_ball = m_ema / (1 - c), where c is the momentum
 *     coefficient in the checkpoint.
 *   - The form of the master weights: f32 values, or remainders (the lower 16 bits of the f32
 *     values). If the form differs, the master weights are converted without a change of their f32
 *     values. A conversion to remainders also writes the parameter, because a parameter with
 *     remainders is rounded with ties away from zero instead of ties to even.
 *   - Other settings, such as learning rate factors. They keep the values of this optimizer, and
 *     muonrt_optimizer_get_load_notes() lists the differences.
 *
 * Each second moment of NorMuon belongs to a row or a column of a part. If the checkpoint and the
 * optimizer both use NorMuon for a parameter, `normuon_axis` and the parts of the parameter must
 * therefore be the same in both. Otherwise the call returns an error, even with `partial`.
 *
 * The step number, the update counts, and the seed and keys of stochastic rounding are taken from
 * the checkpoint. Master weights that belong to the caller (MUONRT_MASTER_CALLER) are overwritten.
 *
 * Each rank reads only the parts that it needs. No rank changes its state until all ranks have
 * verified every byte that they need.
 *
 * Threads: one at a time per optimizer. Collective: over the optimizer's ranks, between steps.
 * Blocking; the timeout is that of muonrt_optimizer_save().
 *
 * @param[in] optimizer  The optimizer.
 * @param[in] folder     Path of the folder that holds the checkpoint.
 * @param[in] options    Options, equal on all ranks; NULL for the defaults.
 *
 * @return MUONRT_OK, or the same error on every rank:
 *   - MUONRT_ERROR_IO: a file could not be read, or the folder holds no checkpoint.
 *   - MUONRT_ERROR_CORRUPT: a file is damaged; the message names the file and the damaged bytes.
 *   - MUONRT_ERROR_INVALID_ARGUMENT: `folder` is NULL or an option is out of range; the checkpoint
 *     belongs to a different model, and the message lists the differences; a parameter that is not
 *     loaded does not have the values that it had when the checkpoint was saved; or converted
 *     momentum is not finite.
 *   - MUONRT_ERROR_NOT_SUPPORTED: the format of the checkpoint is not "muonrt checkpoint 1", which
 *     is the only format so far.
 *   - MUONRT_ERROR_MISMATCH: the ranks have different options, or read different manifests.
 *   - MUONRT_ERROR_INVALID_STATE: a save is in progress, or an earlier error has made the optimizer
 *     unusable.
 *   - MUONRT_ERROR_OUT_OF_MEMORY: a rank could not allocate memory.
 *   - MUONRT_ERROR_DEVICE: a GPU reported an error.
 *   - MUONRT_ERROR_TIMEOUT: a rank did not take part, or the work on its default stream did not
 *     finish, before the timeout.
 *   - MUONRT_ERROR_COMM, _ABORTED: the communicator has failed or was aborted.
 *
 * Usually, an error leaves the parameters and the state unchanged. However, an error can occur
 * while muonrt is writing the state, for example if a file changes while it is being loaded. In
 * that case, the message says that the state is partly written, and the optimizer is unusable on
 * every rank.
 */
MUONRT_API muonrt_status_t muonrt_optimizer_load(muonrt_optimizer_t* optimizer, const char* folder,
                                                 const muonrt_load_options_t* options);

/**
 * Gets the notes of the last successful muonrt_optimizer_load().
 *
 * The first line, which is omitted with `without_params`, contains
 *   - the number of parameters that were loaded, and their size in bytes;
 *   - the number of parameters that were computed from master weights;
 *   - the number of parameters that are unchanged because the checkpoint contains neither their
 *     values nor their master weights.
 *
 * Each of the other lines names either a setting that differs, or state (momentum or master
 * weights) that was converted. With `partial`, a line may also name a parameter or a kind of state
 * that was initialized or ignored.
 *
 * Threads: one at a time per optimizer. Collective: no.
 *
 * @param[out] buffer     Receives at most `capacity` bytes, including a terminating zero; NULL if
 *                        `capacity` is 0.
 * @param[in]  capacity   Size of `buffer` in bytes, >= 0.
 * @param[out] needed     Length of the whole text without the terminating zero; may be NULL.
 * @param[in]  optimizer  The optimizer.
 *
 * @return MUONRT_OK, or
 *   - MUONRT_ERROR_INVALID_ARGUMENT: `capacity` is below 0, or `buffer` is NULL and `capacity` is
 *     not 0.
 */
MUONRT_API muonrt_status_t muonrt_optimizer_get_load_notes(char* buffer, int64_t capacity,
                                                           int64_t* needed,
                                                           const muonrt_optimizer_t* optimizer);

#ifdef __cplusplus
}
#endif

#endif /* MUONRT_CHECKPOINT_H */
