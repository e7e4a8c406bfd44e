/**
 * @file muonrt/orthogonalize.h
 * Newton-Schulz and its symmetric products, for programs that have their own optimizer.
 *
 * An orthogonalizer performs the same operations as a step of an optimizer with the same settings,
 * so the results are bitwise identical. For an example, see README.md in this folder.
 *
 * @par Tensors
 * A tensor has 2 to MUONRT_MAX_DIMS dimensions. The last two are the rows and columns of a matrix;
 * the others, if any, form a batch. The results for a batch are the same as those of one call per
 * matrix. Sizes may be 0. Strides must not be negative, and the rows or the columns of each matrix
 * must be contiguous. You can therefore pass a transposed matrix or a submatrix without a copy.
 * Elements must be f32, bf16 or f16, in memory of the orthogonalizer's device.
 *
 * An output may be the same tensor as an input. Otherwise it must not share elements with an input.
 *
 * @par CUDA
 * Functions enqueue their work on the caller's stream and return without waiting for it. The first
 * call with new shapes, strides or dtypes allocates memory and may wait for the device. Later calls
 * with the same shapes, strides and dtypes neither allocate nor wait, and may be captured into a
 * CUDA graph. The addresses of the tensors may differ from call to call. All calls with the same
 * orthogonalizer use the same workspace, so make them on one stream, or order the streams with
 * events. Do not launch a graph that contains captured calls after the orthogonalizer has been
 * destroyed. If a later call needs a larger workspace, the smaller one remains allocated, so begin
 * with the largest matrices.
 *
 * On the host, functions return after they have written the results.
 *
 * Every function returns MUONRT_ERROR_INVALID_ARGUMENT if the orthogonalizer is NULL or was
 * destroyed, and MUONRT_ERROR_INVALID_STATE in a child process that was forked after the
 * orthogonalizer was created.
 */
#ifndef MUONRT_ORTHOGONALIZE_H
#define MUONRT_ORTHOGONALIZE_H

#include "muonrt/base.h"
#include "muonrt/optimizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Settings of Newton-Schulz, together with threads and a workspace on one device. */
typedef struct muonrt_orthogonalizer muonrt_orthogonalizer_t;

/**
 * Creates an orthogonalizer.
 *
 * Threads: any. Collective: no.
 *
 * @param[out] orthogonalizer  The orthogonalizer.
 * @param[in]  options         Optimizer options. Only the following have an effect: `device`,
 *                             `device_index` and `threads`; `iteration_dtype`, `symmetric` and
 *                             `allocator` of `tuning`; and `portable_gemm` of `debug`. NULL means
 *                             the defaults: the host, with one thread.
 * @param[in]  group           A Muon group. Only the following fields have an effect:
 *                             `coefficients`, `steps`, `lower_bound`, `cushion`, `safety`,
 *                             `safety_mode`, `normalize`, `normalize_eps`, `custom`, `form`,
 *                             `gram_restarts`, `iteration_dtype`, `row_scaling` and `renormalize`.
 *                             NULL means the defaults.
 *
 * @return MUONRT_OK, or
 *   - MUONRT_ERROR_INVALID_ARGUMENT: `orthogonalizer` is NULL, a setting is out of range, `group`
 *     is an AdamW group, or muonrt_optimizer_create() would reject the coefficients;
 *   - MUONRT_ERROR_NOT_SUPPORTED: this build or machine does not support the device, or the Gram
 *     form is not safe with the restarts in `gram_restarts`;
 *   - MUONRT_ERROR_DEVICE: the device index does not exist, or a GPU reported an error;
 *   - MUONRT_ERROR_OUT_OF_MEMORY.
 */
MUONRT_API muonrt_status_t muonrt_orthogonalizer_create(muonrt_orthogonalizer_t** orthogonalizer,
                                                        const muonrt_optimizer_options_t* options,
                                                        const muonrt_group_t* group);

/**
 * Destroys an orthogonalizer. On CUDA, the call waits for the work of earlier calls.
 *
 * Threads: one at a time per orthogonalizer. Collective: no.
 *
 * @param[in] orthogonalizer  The orthogonalizer; NULL is accepted.
 */
MUONRT_API void muonrt_orthogonalizer_destroy(muonrt_orthogonalizer_t* orthogonalizer);

/**
 * Orthogonalizes each matrix of a batch with Newton-Schulz.
 *
 * For a matrix with the singular values s_i, the result has the same singular vectors and the
 * singular values p(s_i / norm). The setting `normalize` defines norm, and the coefficients define
 * the polynomial p, which maps each s_i / norm to a value close to 1. `scale_rule` is not applied.
 * The result for a matrix of zeros is zero. If `transport_dtype` is the dtype of `x`, a step that
 * orthogonalizes `x` computes the same result. The result is rounded once, to the dtype of `out`.
 * An f16 tensor gives the same results as an f32 tensor with the same values.
 *
 * If an element of `x` is not finite:
 *   - on the host, the call returns MUONRT_SKIPPED and leaves `out` unchanged.
 *     muonrt_get_last_error() returns a message with the index of the element;
 *   - on CUDA, all elements of the corresponding matrix in `out` become NaN.
 *
 * Threads: one at a time per orthogonalizer. Collective: no.
 *
 * @param[out] out             The results: a tensor with the shape of `x` and any dtype and
 *                             strides.
 * @param[out] nonfinite       Address in the device's memory, to which the call writes 1 if an
 *                             element of `x` is not finite, otherwise 0. On CUDA, a kernel on
 *                             `stream` writes the value. May be NULL.
 * @param[in]  orthogonalizer  The orthogonalizer.
 * @param[in]  x               The matrices. `row_scaling` and `renormalize` treat rows as outputs.
 * @param[in]  stream          On CUDA, the cudaStream_t; NULL means the default stream. Pass
 *                             NULL on the host.
 *
 * @return MUONRT_OK, MUONRT_SKIPPED, or
 *   - MUONRT_ERROR_INVALID_ARGUMENT: a tensor is invalid or on a different device, shapes differ,
 *     elements of `out` overlap, or `out` overlaps `x` but is not the same tensor. Nothing has then
 *     been written;
 *   - MUONRT_ERROR_NOT_SUPPORTED: the stream is being captured, and the orthogonalizer has not been
 *     called with these shapes, strides and dtypes before;
 *   - MUONRT_ERROR_DEVICE;
 *   - MUONRT_ERROR_OUT_OF_MEMORY.
 */
MUONRT_API muonrt_status_t muonrt_orthogonalize(const muonrt_dltensor_t* out, int64_t* nonfinite,
                                                muonrt_orthogonalizer_t* orthogonalizer,
                                                const muonrt_dltensor_t* x, void* stream);

/**
 * Computes C = alpha A A^T + beta D for each matrix of a batch, with half the operations of a full
 * product.
 *
 * One iteration of Newton-Schulz computes X' = a X + Z X with R = X X^T and Z = b R + c R^2. For R,
 * pass (1, X, 0, NULL) to this function as (alpha, A, beta, D); for Z, pass (c, R, b, R). C is
 * exactly symmetric. Products are summed in f32 and rounded once. Non-finite elements propagate as
 * in IEEE arithmetic. The settings of Newton-Schulz in the orthogonalizer have no effect.
 *
 * Threads: one at a time per orthogonalizer. Collective: no.
 *
 * @param[out] c               The results, m x m, with the dtype of `a`. May be the same tensor as
 *                             `a` or `d`.
 * @param[in]  orthogonalizer  The orthogonalizer.
 * @param[in]  alpha           Factor of A A^T, a finite f32 number.
 * @param[in]  a               The matrices A, m x k.
 * @param[in]  beta            Factor of D, a finite f32 number. If it is 0, D is not read.
 * @param[in]  d               The symmetric matrices D, m x m, with the dtype of `a`; only the
 *                             upper triangle is read. May be the same tensor as `a`. NULL if `beta`
 *                             is 0.
 * @param[in]  stream          On CUDA, the cudaStream_t; NULL means the default stream. Pass
 *                             NULL on the host.
 *
 * @return MUONRT_OK, or an error of muonrt_orthogonalize(). MUONRT_ERROR_INVALID_ARGUMENT is also
 * returned if the dtypes differ, a factor is not finite, or `d` is NULL and `beta` is not 0.
 */
MUONRT_API muonrt_status_t muonrt_symmetric_product(const muonrt_dltensor_t* c,
                                                    muonrt_orthogonalizer_t* orthogonalizer,
                                                    double alpha, const muonrt_dltensor_t* a,
                                                    double beta, const muonrt_dltensor_t* d,
                                                    void* stream);

#ifdef __cplusplus
}
#endif

#endif /* MUONRT_ORTHOGONALIZE_H */
