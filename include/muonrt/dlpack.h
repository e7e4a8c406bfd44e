/**
 * @file muonrt/dlpack.h
 * Functions that set the buffers of a muonrt_param_t from DLPack tensors. They are implemented in
 * this header, which muonrt.h does not include.
 *
 * DLPack's own header is not needed, because muonrt/base.h declares muonrt_dltensor_t, which has
 * the same memory layout as DLTensor in all versions of DLPack. If DLPack's header is included
 * first, the compiler checks that both structs have the same size.
 *
 * To pass a tensor, pass the address of its DLTensor, for example `&m->dl_tensor` for a
 * `DLManagedTensor* m`. muonrt uses the memory and the shape of the tensor, but does not free them
 * and does not call the deleter. Steps write to the data of a parameter even if the tensor is
 * marked as read-only, because the read-only flag belongs to DLManagedTensorVersioned and is not
 * part of the DLTensor.
 */
#ifndef MUONRT_DLPACK_H
#define MUONRT_DLPACK_H

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "muonrt/base.h"
#include "muonrt/optimizer.h"
#include "muonrt/param.h"

#ifdef __cplusplus
extern "C" {
#endif

#if defined(DLPACK_DLPACK_H_) || defined(DLPACK_VERSION) || defined(DLPACK_MAJOR_VERSION)
typedef char muonrt_dltensor_is_dlpacks[sizeof(muonrt_dltensor_t) == sizeof(DLTensor) ? 1 : -1];
#endif

/* Internal: sets the error message, and returns MUONRT_ERROR_INVALID_ARGUMENT. */
static inline muonrt_status_t muonrt_dlpack_reject(const char* what, const char* text) {
  char message[512];
  snprintf(message, sizeof message, "DLPack tensor '%s' %s", what ? what : "", text);
  return muonrt_set_last_error(MUONRT_ERROR_INVALID_ARGUMENT, message);
}

/* Internal: checks the element type. */
static inline muonrt_status_t muonrt_dlpack_check_type(const muonrt_dltensor_t* t,
                                                       const char* what) {
  char text[256];
  const int known =
      (t->type_code == 2 && t->type_bits == 32) || (t->type_code == 4 && t->type_bits == 16);
  if (known && t->type_lanes == 1) return MUONRT_OK;
  snprintf(text, sizeof text,
           "has type code %d, %d bits, %d lanes, but must have 2, 32, 1 (f32) or 4, 16, 1 (bf16); "
           "convert it",
           t->type_code, t->type_bits, t->type_lanes);
  return muonrt_dlpack_reject(what, text);
}

/* Internal: checks that the optimizer's device can access the tensor. */
static inline muonrt_status_t muonrt_dlpack_check_device(const muonrt_dltensor_t* t,
                                                         const char* what,
                                                         enum muonrt_device device,
                                                         int32_t device_index) {
  char text[256];
  int given, reached;
  if (device != MUONRT_DEVICE_HOST && device != MUONRT_DEVICE_CUDA) {
    /* Copies the bits, because the signedness of an enum differs between compilers. */
    memcpy(&given, &device, sizeof given);
    snprintf(text, sizeof text,
             "is read for device %d, but device must be %d (host) or %d (CUDA); pass the device of "
             "the optimizer",
             given, MUONRT_DEVICE_HOST, MUONRT_DEVICE_CUDA);
    return muonrt_dlpack_reject(what, text);
  }
  reached = device == MUONRT_DEVICE_CUDA
                ? (t->device_type == 2 && t->device_id == device_index) || t->device_type == 13
                : t->device_type == 1 || t->device_type == 3;
  if (reached) return MUONRT_OK;
  snprintf(text, sizeof text,
           "is on device type %" PRId32 ", number %" PRId32 ", but the optimizer is on %s%" PRId32
           " (type 1 is the host, 2 CUDA); copy the tensor there",
           t->device_type, t->device_id,
           device == MUONRT_DEVICE_CUDA ? "CUDA device " : "the host, device ", device_index);
  return muonrt_dlpack_reject(what, text);
}

/* Internal: checks the strides; sets *empty to 1 if the tensor has no elements. */
static inline muonrt_status_t muonrt_dlpack_check_strides(const muonrt_dltensor_t* t,
                                                          const char* what, int* empty) {
  char text[256];
  int64_t expected = 1;
  int32_t i;
  for (i = 0; i < t->ndim; ++i) {
    if (t->shape[i] == 0) *empty = 1;
  }
  for (i = t->ndim - 1; t->strides && !*empty && i >= 0; --i) {
    if (t->shape[i] != 1 && t->strides[i] != expected) {
      snprintf(text, sizeof text,
               "has stride %" PRId64 " in dimension %" PRId32 ", but must have %" PRId64
               "; pass a tensor that is row-major and contiguous",
               t->strides[i], i, expected);
      return muonrt_dlpack_reject(what, text);
    }
    expected *= t->shape[i];
  }
  return MUONRT_OK;
}

/**
 * Reads the address and the dtype of a tensor's elements.
 *
 * The tensor must be row-major and contiguous. The stride of a dimension of size 1 is ignored.
 *
 * Threads: any. Collective: no.
 *
 * @param[out] data          Address of the first element; NULL if the tensor has no elements.
 * @param[out] dtype         MUONRT_DTYPE_F32 or MUONRT_DTYPE_BF16.
 * @param[in]  tensor        Address of a DLTensor.
 * @param[in]  what          Name of the tensor for messages; NULL means "".
 * @param[in]  device        Device of the optimizer: MUONRT_DEVICE_HOST or MUONRT_DEVICE_CUDA.
 * @param[in]  device_index  CUDA device index of the optimizer.
 *
 * @return MUONRT_OK, or MUONRT_ERROR_INVALID_ARGUMENT if `device` is not one of the two devices, or
 * if `tensor` is NULL or not suitable. A suitable tensor is accessible to the device, has f32 or
 * bf16 elements and at most MUONRT_MAX_DIMS dimensions, and is row-major and contiguous. After an
 * error, the outputs are unchanged.
 */
static inline muonrt_status_t muonrt_dlpack_read(void** data, enum muonrt_dtype* dtype,
                                                 const void* tensor, const char* what,
                                                 enum muonrt_device device, int32_t device_index) {
  muonrt_dltensor_t t;
  muonrt_status_t status;
  char text[256];
  int empty = 0;
  if (!tensor) return muonrt_dlpack_reject(what, "is NULL; pass the address of a DLTensor");
  memcpy(&t, tensor, sizeof t);
  if (t.ndim < 0 || t.ndim > MUONRT_MAX_DIMS || (t.ndim > 0 && !t.shape)) {
    snprintf(text, sizeof text,
             "has %" PRId32
             " dimensions and %s shape, but must have 0 to %d and a shape; pass such a "
             "tensor",
             t.ndim, t.shape ? "a" : "no", MUONRT_MAX_DIMS);
    return muonrt_dlpack_reject(what, text);
  }
  status = muonrt_dlpack_check_device(&t, what, device, device_index);
  if (status == MUONRT_OK) status = muonrt_dlpack_check_type(&t, what);
  if (status == MUONRT_OK) status = muonrt_dlpack_check_strides(&t, what, &empty);
  if (status != MUONRT_OK) return status;
  memset(data, 0, sizeof *data);
  if (!empty) *data = t.data + t.byte_offset;
  *dtype = t.type_code == 2 ? MUONRT_DTYPE_F32 : MUONRT_DTYPE_BF16;
  return MUONRT_OK;
}

/**
 * Sets `data`, `dtype`, `ndim` and `local_shape` of a parameter from a tensor that holds this
 * rank's shard.
 *
 * Set the parameter's name, shape and layout first. If `shape` is NULL, the tensor is the whole
 * parameter, and the function also sets `shape`. If the layout is MUONRT_LAYOUT_FLAT, the tensor
 * must have one dimension, and the function leaves `ndim` and `local_shape` unchanged.
 *
 * After the call, the parameter points to the tensor's shape, so keep the shape valid until
 * muonrt_optimizer_create() has returned.
 *
 * Threads: any. Collective: no.
 *
 * @param[in,out] param         The parameter.
 * @param[in]     tensor        Address of a DLTensor.
 * @param[in]     device        Device of the optimizer: MUONRT_DEVICE_HOST or MUONRT_DEVICE_CUDA.
 * @param[in]     device_index  CUDA device index of the optimizer.
 *
 * @return MUONRT_OK, or MUONRT_ERROR_INVALID_ARGUMENT if muonrt_dlpack_read() rejects the tensor,
 * or if the tensor and the parameter have different numbers of dimensions. `*param` is unchanged
 * after an error.
 */
static inline muonrt_status_t muonrt_param_set_data_dlpack(muonrt_param_t* param,
                                                           const void* tensor,
                                                           enum muonrt_device device,
                                                           int32_t device_index) {
  muonrt_dltensor_t t;
  void* data;
  enum muonrt_dtype dtype;
  char text[256];
  int flat;
  const muonrt_status_t status =
      muonrt_dlpack_read(&data, &dtype, tensor, param->name, device, device_index);
  if (status != MUONRT_OK) return status;
  memcpy(&t, tensor, sizeof t);
  flat = param->shape && param->layout && param->layout->kind == MUONRT_LAYOUT_FLAT;
  if (param->shape && t.ndim != (flat ? 1 : param->ndim)) {
    snprintf(text, sizeof text,
             "has %" PRId32 " dimensions, but must have %d; pass the shard of this rank", t.ndim,
             flat ? 1 : param->ndim);
    return muonrt_dlpack_reject(param->name, text);
  }
  param->data = data;
  param->dtype = dtype == MUONRT_DTYPE_F32 ? MUONRT_DTYPE_F32 : MUONRT_DTYPE_BF16;
  if (flat) return MUONRT_OK;
  param->ndim = t.ndim;
  param->local_shape = t.shape;
  if (!param->shape) param->shape = t.shape;
  return MUONRT_OK;
}

/**
 * Sets `grad` and `grad_dtype` of a parameter from a tensor.
 *
 * Call it after muonrt_param_set_data_dlpack(). To set a gradient after muonrt_optimizer_create(),
 * call muonrt_dlpack_read() and muonrt_optimizer_set_grad() instead.
 *
 * Threads: any. Collective: no.
 *
 * @param[in,out] param         The parameter.
 * @param[in]     tensor        Address of a DLTensor. If `grad_layout` of the parameter is NULL,
 *                              the tensor must have the shape of the parameter's data.
 * @param[in]     device        Device of the optimizer: MUONRT_DEVICE_HOST or MUONRT_DEVICE_CUDA.
 * @param[in]     device_index  CUDA device index of the optimizer.
 *
 * @return MUONRT_OK, or MUONRT_ERROR_INVALID_ARGUMENT if muonrt_dlpack_read() rejects the tensor,
 * or if `grad_layout` is NULL and the shape of the tensor is not `local_shape`. `*param` is
 * unchanged after an error.
 */
static inline muonrt_status_t muonrt_param_set_grad_dlpack(muonrt_param_t* param,
                                                           const void* tensor,
                                                           enum muonrt_device device,
                                                           int32_t device_index) {
  muonrt_dltensor_t t;
  void* data;
  enum muonrt_dtype dtype;
  char text[256];
  int32_t i = 0;
  const muonrt_status_t status =
      muonrt_dlpack_read(&data, &dtype, tensor, param->name, device, device_index);
  if (status != MUONRT_OK) return status;
  memcpy(&t, tensor, sizeof t);
  if (param->local_shape && !param->grad_layout) {
    while (i < param->ndim && i < t.ndim && t.shape[i] == param->local_shape[i]) ++i;
    if (i < param->ndim || i < t.ndim) {
      snprintf(text, sizeof text,
               "of %" PRId32 " dimensions differs from data, of %" PRId32 ", in dimension %" PRId32
               "; pass the gradient of the shard of this rank",
               t.ndim, param->ndim, i);
      return muonrt_dlpack_reject(param->name, text);
    }
  }
  param->grad = data;
  param->grad_dtype = dtype == MUONRT_DTYPE_F32 ? MUONRT_DTYPE_F32 : MUONRT_DTYPE_BF16;
  return MUONRT_OK;
}

#ifdef __cplusplus
}
#endif

#endif /* MUONRT_DLPACK_H */
