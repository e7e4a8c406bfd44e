/**
 * @file muonrt/checkpoint_reader.h
 * Functions that list, read and verify the tensors of a checkpoint, without an optimizer, a
 * communicator or a GPU.
 *
 * muonrt_optimizer_save() (muonrt/checkpoint.h) writes the checkpoints. The functions in this
 * header return whole tensors, so you need no information about the ranks that saved a checkpoint.
 * The following program verifies a checkpoint and prints the first momentum value of each
 * parameter:
 *
 * @code
 * #include <muonrt/checkpoint_reader.h>
 * #include <stdio.h>
 * #include <stdlib.h>
 *
 * static void check(muonrt_status_t status) {
 *   if (status == MUONRT_OK) return;
 *   fprintf(stderr, "%s\n", muonrt_get_last_error());
 *   exit(1);
 * }
 *
 * int main(void) {
 *   muonrt_checkpoint_t* checkpoint;
 *   muonrt_checkpoint_info_t info;
 *   int64_t i;
 *   check(muonrt_checkpoint_open(&checkpoint, "run/state", NULL));
 *   check(muonrt_checkpoint_verify(checkpoint));
 *   muonrt_checkpoint_info_init(&info);
 *   check(muonrt_checkpoint_get_info(&info, checkpoint));
 *   for (i = 0; i < info.n_tensors; ++i) {
 *     muonrt_checkpoint_tensor_t tensor;
 *     float* values;
 *     muonrt_checkpoint_tensor_init(&tensor);
 *     check(muonrt_checkpoint_get_tensor(&tensor, checkpoint, i));
 *     if (tensor.kind != MUONRT_STATE_MOMENTUM || tensor.dtype != MUONRT_DTYPE_F32) continue;
 *     values = (float*)malloc((size_t)tensor.bytes);
 *     if (!values) return 1;
 *     check(muonrt_checkpoint_read(values, tensor.bytes, checkpoint, i));
 *     printf("%s: %g ...\n", tensor.param, values[0]);
 *     free(values);
 *   }
 *   muonrt_checkpoint_destroy(checkpoint);
 *   return 0;
 * }
 * @endcode
 *
 * Even if files are damaged, the time and the memory that a call needs are limited by the size of
 * the files. A data file is mapped into memory when a function first needs it. The mapped file
 * stays readable even if a later save removes it. Do not truncate a file before
 * muonrt_checkpoint_destroy(), because reading the missing part would end the process with SIGBUS.
 *
 * Every function returns MUONRT_ERROR_INVALID_ARGUMENT if the checkpoint is NULL or was destroyed,
 * and MUONRT_ERROR_INVALID_STATE in a child process that was forked after the checkpoint was
 * opened.
 */
#ifndef MUONRT_CHECKPOINT_READER_H
#define MUONRT_CHECKPOINT_READER_H

#include "muonrt/base.h"
#include "muonrt/group.h"
#include "muonrt/optimizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/** An open checkpoint. It is independent of other open checkpoints and of optimizers. */
typedef struct muonrt_checkpoint muonrt_checkpoint_t;

/** Description of a checkpoint. Call muonrt_checkpoint_info_init() before you pass the struct. */
typedef struct muonrt_checkpoint_info {
  /** Size of the struct in bytes; set by muonrt_checkpoint_info_init(). */
  uint32_t struct_size;

  /** Version of the checkpoint format. The only version so far is 1. */
  int32_t format_version;

  /** 1: the parameters are saved. 0: only a hash of each parameter is saved. */
  int32_t with_params;

  /** Number of data files. There is one file for each rank that had data to save. */
  int32_t n_files;

  /** Total size of the data files in bytes, according to the manifest. */
  int64_t bytes;

  /** Number of committed steps. */
  int64_t step;

  /** Number of the save, counted from 1 in each folder, independently of `step`. */
  int64_t save;

  /** Seed of stochastic rounding. */
  uint64_t seed;

  /** Number of parameters. */
  int64_t n_params;

  /** Number of tensors: the parameters, and the tensors of their state. */
  int64_t n_tensors;
} muonrt_checkpoint_info_t;

/** Description of a tensor. Call muonrt_checkpoint_tensor_init() before you pass the struct. */
typedef struct muonrt_checkpoint_tensor {
  /** Size of the struct in bytes; set by muonrt_checkpoint_tensor_init(). */
  uint32_t struct_size;

  /** Kind of state, or MUONRT_STATE_PARAM for the parameter itself. */
  muonrt_state_kind_t kind;

  /** Name of the parameter. */
  const char* param;

  /** Data type; 0 for MUONRT_STATE_REMAINDER, whose elements are uint16_t. */
  muonrt_dtype_t dtype;

  /** Number of dimensions of `shape`. */
  int32_t ndim;

  /**
   * Shape of the whole tensor. A tensor of kind MUONRT_STATE_NORMUON has one dimension, whose size
   * is the number of neurons; see muonrt_state_shard_t.
   */
  const int64_t* shape;

  /** Size of the whole tensor in bytes; 0 if `has_data` is 0. */
  int64_t bytes;

  /** Number of blocks into which the tensor is divided in the data files. */
  int64_t n_parts;

  /** 1: the tensor can be read. 0: the checkpoint contains only a hash of the parameter. */
  int32_t has_data;

  /** The algorithm that updates the parameter. */
  muonrt_role_t role;

  /** Number of committed steps that have updated the parameter. */
  int64_t update_count;

  /** Hash of the values of the parameter. */
  uint64_t hash;

  /** Coefficient of the parameter's momentum: `momentum` of Muon, `beta1` of AdamW. */
  double momentum;

  /** MUONRT_MOMENTUM_HEAVY_BALL, or MUONRT_MOMENTUM_EMA (also for _EMA_CORRECTED and AdamW). */
  muonrt_momentum_kind_t momentum_kind;

  /** Reserved; 0. */
  int32_t reserved;
} muonrt_checkpoint_tensor_t;

/**
 * Sets every field of `info` to its default.
 *
 * Call it through the macro muonrt_checkpoint_info_init(), which passes the size. muonrt/base.h
 * explains how programs and libraries of different versions work together.
 *
 * Threads: any.
 *
 * @param[out] info  The struct to fill; NULL is accepted.
 * @param[in]  size  Size of the struct in bytes, as the program's headers declare it.
 */
MUONRT_API void muonrt_checkpoint_info_init_sized(muonrt_checkpoint_info_t* info, uint32_t size);
#define muonrt_checkpoint_info_init(info) \
  muonrt_checkpoint_info_init_sized((info), sizeof(muonrt_checkpoint_info_t))

/**
 * Sets every field of `tensor` to its default.
 *
 * Call it through the macro muonrt_checkpoint_tensor_init(), which passes the size.
 *
 * Threads: any.
 *
 * @param[out] tensor  The struct to fill; NULL is accepted.
 * @param[in]  size    Size of the struct in bytes, as the program's headers declare it.
 */
MUONRT_API void muonrt_checkpoint_tensor_init_sized(muonrt_checkpoint_tensor_t* tensor,
                                                    uint32_t size);
#define muonrt_checkpoint_tensor_init(tensor) \
  muonrt_checkpoint_tensor_init_sized((tensor), sizeof(muonrt_checkpoint_tensor_t))

/**
 * Lists the checkpoints in a folder.
 *
 * Each line of the text is the file name of a manifest. The first line is manifest.json, the
 * manifest of the newest checkpoint. The other lines name the manifests of the older checkpoints
 * that were kept (see `keep` of muonrt_save_options_t), newest first. For example,
 * manifest-0000000007-0000000000002000.json belongs to save 7, after step 2000. The text is empty
 * if the folder holds no checkpoint. The call does not read the manifests.
 *
 * Threads: any. Collective: no.
 *
 * @param[out] buffer    Receives at most `capacity` bytes, including a terminating zero; NULL if
 *                       `capacity` is 0.
 * @param[in]  capacity  Size of `buffer` in bytes, >= 0.
 * @param[out] needed    Length of the whole text without the terminating zero; may be NULL.
 * @param[in]  folder    Path of the folder.
 *
 * @return MUONRT_OK, or
 *   - MUONRT_ERROR_INVALID_ARGUMENT: `folder` is NULL or empty, `capacity` is below 0, or `buffer`
 *     is NULL and `capacity` is not 0;
 *   - MUONRT_ERROR_IO: the folder does not exist or cannot be read;
 *   - MUONRT_ERROR_OUT_OF_MEMORY.
 */
MUONRT_API muonrt_status_t muonrt_checkpoint_list(char* buffer, int64_t capacity, int64_t* needed,
                                                  const char* folder);

/**
 * Opens a checkpoint. The call reads the manifest, but no data file.
 *
 * Threads: any. Collective: no.
 *
 * @param[out] checkpoint  The checkpoint; NULL after an error. Destroy it with
 *                         muonrt_checkpoint_destroy().
 * @param[in]  folder      Path of the folder.
 * @param[in]  manifest    File name of a manifest in the folder, from muonrt_checkpoint_list();
 *                         NULL for the newest checkpoint.
 *
 * @return MUONRT_OK, or
 *   - MUONRT_ERROR_INVALID_ARGUMENT: `checkpoint` is NULL, `folder` is NULL or empty, or `manifest`
 *     is a path instead of a file name;
 *   - MUONRT_ERROR_IO: the manifest does not exist or cannot be read;
 *   - MUONRT_ERROR_CORRUPT: the manifest is damaged;
 *   - MUONRT_ERROR_NOT_SUPPORTED: the checkpoint has a different format version;
 *   - MUONRT_ERROR_OUT_OF_MEMORY.
 */
MUONRT_API muonrt_status_t muonrt_checkpoint_open(muonrt_checkpoint_t** checkpoint,
                                                  const char* folder, const char* manifest);

/**
 * Closes a checkpoint and frees its memory.
 *
 * The call frees nothing in a child process that was forked after the checkpoint was opened.
 *
 * Threads: one; no other call with this checkpoint may be in progress. Collective: no.
 *
 * @param[in] checkpoint  The checkpoint; NULL is accepted.
 */
MUONRT_API void muonrt_checkpoint_destroy(muonrt_checkpoint_t* checkpoint);

/**
 * Gets the step number, the number of tensors and other properties of the checkpoint.
 *
 * Threads: one at a time per checkpoint. Collective: no.
 *
 * @param[out] info        The properties.
 * @param[in]  checkpoint  The checkpoint.
 *
 * @return MUONRT_OK, or
 *   - MUONRT_ERROR_INVALID_ARGUMENT: `info` is NULL or not initialized.
 */
MUONRT_API muonrt_status_t muonrt_checkpoint_get_info(muonrt_checkpoint_info_t* info,
                                                      const muonrt_checkpoint_t* checkpoint);

/**
 * Gets the text of the manifest, which is JSON in UTF-8.
 *
 * The manifest contains the properties of muonrt_checkpoint_info_t and these lists:
 *   - `groups`: the settings of each group, as strings;
 *   - `params`: the name, shape, dtype, role, group index and other properties of each parameter;
 *   - `files`: the name and the size of each data file.
 *
 * Threads: one at a time per checkpoint. Collective: no.
 *
 * @param[out] buffer      Receives at most `capacity` bytes, including a terminating zero; NULL if
 *                         `capacity` is 0.
 * @param[in]  capacity    Size of `buffer` in bytes, >= 0.
 * @param[out] needed      Length of the whole text without the terminating zero; may be NULL.
 * @param[in]  checkpoint  The checkpoint.
 *
 * @return MUONRT_OK, or
 *   - MUONRT_ERROR_INVALID_ARGUMENT: `capacity` is below 0, or `buffer` is NULL and `capacity` is
 *     not 0.
 */
MUONRT_API muonrt_status_t muonrt_checkpoint_get_manifest(char* buffer, int64_t capacity,
                                                          int64_t* needed,
                                                          const muonrt_checkpoint_t* checkpoint);

/**
 * Gets the description of a tensor, for example its name, dtype, shape and size.
 *
 * The tensors are in the order of the parameters. The first tensor of each parameter is the
 * parameter itself. The tensors of its state follow in ascending order of `kind`. You can safely
 * allocate `bytes` bytes of memory, because even in a damaged checkpoint `bytes` is at most the
 * size of the data files.
 *
 * Threads: one at a time per checkpoint. Collective: no.
 *
 * @param[out] tensor      The description. Its pointers are valid until
 *                         muonrt_checkpoint_destroy().
 * @param[in]  checkpoint  The checkpoint.
 * @param[in]  index       Index of the tensor, 0 to `n_tensors` - 1 of muonrt_checkpoint_info_t.
 *
 * @return MUONRT_OK, or
 *   - MUONRT_ERROR_INVALID_ARGUMENT: `tensor` is NULL or not initialized, or `index` is out of
 *     range;
 *   - MUONRT_ERROR_IO: a file with elements of the tensor does not exist or cannot be read;
 *   - MUONRT_ERROR_CORRUPT: a file with elements of the tensor is damaged, or elements are missing;
 *   - MUONRT_ERROR_OUT_OF_MEMORY.
 */
MUONRT_API muonrt_status_t muonrt_checkpoint_get_tensor(muonrt_checkpoint_tensor_t* tensor,
                                                        muonrt_checkpoint_t* checkpoint,
                                                        int64_t index);

/**
 * Finds the tensor that holds a given kind of state of a parameter.
 *
 * Threads: one at a time per checkpoint. Collective: no.
 *
 * @param[out] index       Index of the tensor; unchanged after an error.
 * @param[in]  checkpoint  The checkpoint.
 * @param[in]  param       Name of the parameter.
 * @param[in]  kind        Kind of state, or MUONRT_STATE_PARAM for the parameter itself.
 *
 * @return MUONRT_OK, or
 *   - MUONRT_ERROR_INVALID_ARGUMENT: a pointer is NULL, `kind` is unknown, the checkpoint does not
 *     contain the parameter, or the parameter does not have this kind of state.
 */
MUONRT_API muonrt_status_t muonrt_checkpoint_find_tensor(int64_t* index,
                                                         const muonrt_checkpoint_t* checkpoint,
                                                         const char* param,
                                                         enum muonrt_state_kind kind);

/**
 * Reads a whole tensor, in row-major order.
 *
 * The call assembles the tensor from the blocks that the ranks have saved. A data file has a
 * checksum for each MiB, which muonrt verifies before the first read from this MiB.
 *
 * Threads: one at a time per checkpoint. Collective: no.
 *
 * @param[out] data        Host memory of `bytes` bytes. May be NULL if `bytes` is 0. After an
 *                         error, it may contain a part of the tensor.
 * @param[in]  bytes       Size of the tensor, `bytes` of muonrt_checkpoint_tensor_t.
 * @param[in]  checkpoint  The checkpoint.
 * @param[in]  index       Index of the tensor.
 *
 * @return MUONRT_OK, or
 *   - MUONRT_ERROR_INVALID_ARGUMENT: `data` is NULL, `index` is out of range, `bytes` is not the
 *     size of the tensor, or the checkpoint contains only a hash of the parameter;
 *   - MUONRT_ERROR_IO: a file with elements of the tensor does not exist or cannot be read;
 *   - MUONRT_ERROR_CORRUPT: the data is damaged, missing or stored twice; the message names the
 *     file and the bytes;
 *   - MUONRT_ERROR_OUT_OF_MEMORY.
 */
MUONRT_API muonrt_status_t muonrt_checkpoint_read(void* data, int64_t bytes,
                                                  muonrt_checkpoint_t* checkpoint, int64_t index);

/**
 * Verifies every byte of the checkpoint.
 *
 * The call opens all data files again and checks that
 *   - the checksums of all headers and data are correct;
 *   - the files contain each element of each tensor exactly once;
 *   - moments are finite, second moments are >= 0, and all moments are 0 at step 0;
 *   - saved parameters match their hashes in the manifest.
 *
 * The call continues after a problem, and muonrt_checkpoint_get_problems() lists all problems.
 *
 * Threads: one at a time per checkpoint. Collective: no.
 *
 * @param[in] checkpoint  The checkpoint.
 *
 * @return MUONRT_OK, or the status of the first problem:
 *   - MUONRT_ERROR_IO: a file does not exist or cannot be read;
 *   - MUONRT_ERROR_CORRUPT: the data is damaged; the message names the file, the damaged bytes, and
 *     the elements that they contain;
 *   - MUONRT_ERROR_OUT_OF_MEMORY.
 */
MUONRT_API muonrt_status_t muonrt_checkpoint_verify(muonrt_checkpoint_t* checkpoint);

/**
 * Gets all problems that the last call to muonrt_checkpoint_verify() found, one per line.
 *
 * The text is empty if there was no problem, or if muonrt_checkpoint_verify() was not called.
 *
 * Threads: one at a time per checkpoint. Collective: no.
 *
 * @param[out] buffer      Receives at most `capacity` bytes, including a terminating zero; NULL if
 *                         `capacity` is 0.
 * @param[in]  capacity    Size of `buffer` in bytes, >= 0.
 * @param[out] needed      Length of the whole text without the terminating zero; may be NULL.
 * @param[in]  checkpoint  The checkpoint.
 *
 * @return MUONRT_OK, or
 *   - MUONRT_ERROR_INVALID_ARGUMENT: `capacity` is below 0, or `buffer` is NULL and `capacity` is
 *     not 0.
 */
MUONRT_API muonrt_status_t muonrt_checkpoint_get_problems(char* buffer, int64_t capacity,
                                                          int64_t* needed,
                                                          const muonrt_checkpoint_t* checkpoint);

#ifdef __cplusplus
}
#endif

#endif /* MUONRT_CHECKPOINT_READER_H */
