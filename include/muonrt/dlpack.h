/* muonrt/dlpack.h - from a DLPack tensor to the buffers of a muonrt_param. Header-only; not in
 * muonrt.h. DLPack's own header is not needed: a DLTensor has the layout below in every version of
 * it. Where that header was included before, the sizes are compared.
 *
 * A tensor is passed by its address: of a DLManagedTensor `m` that is &m->dl_tensor. muonrt borrows
 * its memory and shape and does not call its deleter. DLPack knows the machine's byte order alone;
 * whether memory is read-only is told by a DLManagedTensorVersioned's flags, which muonrt does not
 * see: steps write to data. */
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

/* DLPack's DLTensor, member by member. */
typedef struct muonrt_dltensor {
  char* data;
  int32_t device_type; /* 1 host, 2 CUDA, 3 host memory that is pinned, 13 CUDA managed */
  int32_t device_id;
  int32_t ndim;
  uint8_t type_code; /* 2 float, 4 bfloat */
  uint8_t type_bits;
  uint16_t type_lanes;
  int64_t* shape;
  int64_t* strides; /* in elements; NULL: row-major */
  uint64_t byte_offset;
} muonrt_dltensor_t;

#if defined(DLPACK_DLPACK_H_) || defined(DLPACK_VERSION) || defined(DLPACK_MAJOR_VERSION)
typedef char muonrt_dltensor_is_dlpacks[sizeof(muonrt_dltensor_t) == sizeof(DLTensor) ? 1 : -1];
#endif

/* The functions below that begin with muonrt_dlpack_refuse or _check serve the others. */
static inline muonrt_status_t muonrt_dlpack_refuse(const char* what, const char* text) {
  char message[512];
  snprintf(message, sizeof message, "DLPack tensor '%s' %s", what ? what : "", text);
  return muonrt_set_last_error(MUONRT_ERROR_INVALID_ARGUMENT, message);
}

static inline muonrt_status_t muonrt_dlpack_check_type(const muonrt_dltensor_t* t,
                                                       const char* what) {
  char text[256];
  const int known =
      (t->type_code == 2 && t->type_bits == 32) || (t->type_code == 4 && t->type_bits == 16);
  if (known && t->type_lanes == 1) return MUONRT_OK;
  snprintf(text, sizeof text,
           "has type code %d, %d bits, %d lanes (float of 32 bits is 2, 32, 1; bfloat of 16 bits "
           "4, 16, 1); pass one of these",
           t->type_code, t->type_bits, t->type_lanes);
  return muonrt_dlpack_refuse(what, text);
}

static inline muonrt_status_t muonrt_dlpack_check_device(const muonrt_dltensor_t* t,
                                                         const char* what, muonrt_device_t device,
                                                         int32_t device_index) {
  char text[256];
  const int reached =
      device == MUONRT_DEVICE_CUDA
          ? (t->device_type == 2 && t->device_id == device_index) || t->device_type == 13
          : t->device_type == 1 || t->device_type == 3;
  if (reached) return MUONRT_OK;
  snprintf(text, sizeof text,
           "is on device type %" PRId32 ", number %" PRId32 " (the optimizer is on %s%" PRId32
           "; types are 1 host, 2 CUDA); copy it there",
           t->device_type, t->device_id,
           device == MUONRT_DEVICE_CUDA ? "CUDA device " : "the host, device ", device_index);
  return muonrt_dlpack_refuse(what, text);
}

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
               "has stride %" PRId64 " in dimension %" PRId32 " (%" PRId64
               " where it is row-major and contiguous); pass a contiguous one",
               t->strides[i], i, expected);
      return muonrt_dlpack_refuse(what, text);
    }
    expected *= t->shape[i];
  }
  return MUONRT_OK;
}

/* *data, *dtype <- where the tensor's elements begin (NULL if it has none) and their type.
 * @param tensor        address of a DLTensor.
 * @param what          its name, for messages.
 * @param device, device_index  those of the optimizer's options.
 * Errors: INVALID_ARGUMENT, naming it and the values, for a null pointer, another device, a type
 * other than f32 and bf16, lanes other than 1, more than MUONRT_MAX_DIMS dimensions, strides that
 * are not row-major and contiguous (those of dimensions of one index mean nothing). Threads: any.
 */
static inline muonrt_status_t muonrt_dlpack_read(void** data, muonrt_dtype_t* dtype,
                                                 const void* tensor, const char* what,
                                                 muonrt_device_t device, int32_t device_index) {
  muonrt_dltensor_t t;
  muonrt_status_t status;
  char text[256];
  int empty = 0;
  if (!tensor) return muonrt_dlpack_refuse(what, "is null; pass the address of a DLTensor");
  memcpy(&t, tensor, sizeof t);
  if (t.ndim < 0 || t.ndim > MUONRT_MAX_DIMS || (t.ndim > 0 && !t.shape)) {
    snprintf(text, sizeof text, "has %" PRId32 " dimensions and %s shape (0 to %d, with one)",
             t.ndim, t.shape ? "a" : "no", MUONRT_MAX_DIMS);
    return muonrt_dlpack_refuse(what, text);
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

/* data, dtype, ndim and local_shape of *param <- the tensor, this rank's shard; its shape, too,
 * where param->shape is NULL (then the tensor is whole). Call it when name, shape and layout are
 * set. The tensor's shape is pointed to until muonrt_optimizer_create returns. A shard that is a
 * flat range has one dimension; its param keeps ndim, and local_shape is left alone.
 * Errors: those of muonrt_dlpack_read; INVALID_ARGUMENT for another number of dimensions than
 * param's; *param is unchanged then. Threads: any. */
static inline muonrt_status_t muonrt_param_set_data_dlpack(muonrt_param_t* param,
                                                           const void* tensor,
                                                           muonrt_device_t device,
                                                           int32_t device_index) {
  muonrt_dltensor_t t;
  void* data;
  muonrt_dtype_t dtype;
  char text[256];
  int flat;
  const muonrt_status_t status =
      muonrt_dlpack_read(&data, &dtype, tensor, param->name, device, device_index);
  if (status != MUONRT_OK) return status;
  memcpy(&t, tensor, sizeof t);
  flat = param->shape && param->layout && param->layout->kind == MUONRT_LAYOUT_FLAT;
  if (param->shape && t.ndim != (flat ? 1 : param->ndim)) {
    snprintf(text, sizeof text, "has %" PRId32 " dimensions (%d expected); pass this rank's shard",
             t.ndim, flat ? 1 : param->ndim);
    return muonrt_dlpack_refuse(param->name, text);
  }
  param->data = data;
  param->dtype = dtype;
  if (flat) return MUONRT_OK;
  param->ndim = t.ndim;
  param->local_shape = t.shape;
  if (!param->shape) param->shape = t.shape;
  return MUONRT_OK;
}

/* grad and grad_dtype of *param <- the tensor, of the same shape as its data where both lie alike
 * (no grad_layout). Call it after muonrt_param_set_data_dlpack. A gradient that comes later:
 * muonrt_dlpack_read, then muonrt_optimizer_set_grad.
 * Errors: those of muonrt_dlpack_read; INVALID_ARGUMENT for another shape than local_shape's;
 * *param is unchanged then. Threads: any. */
static inline muonrt_status_t muonrt_param_set_grad_dlpack(muonrt_param_t* param,
                                                           const void* tensor,
                                                           muonrt_device_t device,
                                                           int32_t device_index) {
  muonrt_dltensor_t t;
  void* data;
  muonrt_dtype_t dtype;
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
               "; pass the gradient of this rank's shard",
               t.ndim, param->ndim, i);
      return muonrt_dlpack_refuse(param->name, text);
    }
  }
  param->grad = data;
  param->grad_dtype = dtype;
  return MUONRT_OK;
}

#ifdef __cplusplus
}
#endif

#endif /* MUONRT_DLPACK_H */
