// Functions of the driver that programs look up by name with the runtime: contexts, tensor maps,
// and waiting for a word to have a value.

#include <cuda.h>

#include <atomic>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "control.hpp"
#include "cuda_runtime.h"
#include "machine.hpp"

namespace {

using emulator::kDevices;
using emulator::Lock;

bool initialized = false;
// A thread's stack of contexts. Each entry contains the device and whether the program created the
// context.
thread_local std::vector<std::pair<int, bool>> former;
const auto foreign = reinterpret_cast<CUcontext>(uintptr_t{kDevices} + 1);
CUcontext primary_of(int device) { return reinterpret_cast<CUcontext>(uintptr_t(device) + 1); }

constexpr cuuint64_t kBytesOfElement = 2, kMaxStride = cuuint64_t{1} << 40,
                     kMaxSize = cuuint64_t{1} << 32;
constexpr cuuint32_t kMaxBoxSize = 256, kSwizzleBytes = 128;

/// Checks the rules that the driver's manual states for tensor maps without interleaving and with
/// the 128-byte swizzle.
bool may_encode(cuuint32_t rank, const void* memory, const cuuint64_t* sizes,
                const cuuint64_t* strides, const cuuint32_t* box, const cuuint32_t* steps) {
  if (rank < 1 || rank > 5 || reinterpret_cast<uintptr_t>(memory) % 16 != 0) return false;
  for (cuuint32_t i = 0; i < rank; ++i) {
    if (sizes[i] == 0 || sizes[i] > kMaxSize || box[i] == 0 || box[i] > kMaxBoxSize ||
        steps[i] == 0 || steps[i] > 8)
      return false;
    if (i + 1 < rank && (strides[i] % 16 != 0 || strides[i] >= kMaxStride)) return false;
  }
  return box[0] * kBytesOfElement % 16 == 0 && box[0] * kBytesOfElement <= kSwizzleBytes;
}

}  // namespace

CUresult cuInit(unsigned flags) {
  const Lock lock;
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  initialized = true;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int index) {
  const Lock lock;
  if (!initialized) return CUDA_ERROR_NOT_INITIALIZED;
  if (index < 0 || index >= kDevices) return CUDA_ERROR_INVALID_DEVICE;
  *device = index;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  const Lock lock;
  if (device < 0 || device >= kDevices) return CUDA_ERROR_INVALID_DEVICE;
  *context = primary_of(device);
  emulator::machine().contexts |= 1u << device;
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext context) {
  const Lock lock;
  const auto number = reinterpret_cast<uintptr_t>(context);
  if (number < 1 || number > kDevices) return CUDA_ERROR_INVALID_CONTEXT;
  former.emplace_back(emulator::current_device, emulator::in_foreign_context);
  emulator::current_device = static_cast<int>(number) - 1;
  emulator::in_foreign_context = false;
  emulator::touch();
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  const Lock lock;
  const int device = emulator::current_device;
  if (!initialized && emulator::machine().contexts == 0) return CUDA_ERROR_NOT_INITIALIZED;
  const bool has_one = (emulator::machine().contexts >> device & 1) != 0;
  *context = emulator::in_foreign_context ? foreign : has_one ? primary_of(device) : nullptr;
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext* context) {
  if (former.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  *context = primary_of(emulator::current_device);
  std::tie(emulator::current_device, emulator::in_foreign_context) = former.back();
  former.pop_back();
  return CUDA_SUCCESS;
}

CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr word, cuuint32_t value, unsigned flags) {
  if (flags != CU_STREAM_WAIT_VALUE_GEQ || word % 4 != 0) return CUDA_ERROR_INVALID_VALUE;
  auto* const seen = reinterpret_cast<cuuint32_t*>(word);
  emulator::enqueue_operation(stream, [=] { return std::atomic_ref(*seen).load() >= value; });
  return CUDA_SUCCESS;
}

// Stores the map as separate fields for the emulated cuda/symmetric/ptx_sm90.cuh: data, columns,
// rows, count, the strides of rows and of matrices in elements, and the rows of a box.
CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank,
                                void* memory, const cuuint64_t* sizes, const cuuint64_t* strides,
                                const cuuint32_t* box, const cuuint32_t* steps,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  const bool known =
      (type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 || type == CU_TENSOR_MAP_DATA_TYPE_FLOAT16) &&
      interleave == CU_TENSOR_MAP_INTERLEAVE_NONE && swizzle == CU_TENSOR_MAP_SWIZZLE_128B &&
      promotion == CU_TENSOR_MAP_L2_PROMOTION_L2_256B && fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE;
  // The emulated copies support only batches of matrices with contiguous elements in a row, and
  // boxes that are 64 elements wide.
  const bool ours = rank == 3 && box[0] == 64 && box[2] == 1 && steps[0] == 1 && steps[1] == 1;
  if (reinterpret_cast<uintptr_t>(map) % 64 != 0 || !known || !ours ||
      !may_encode(rank, memory, sizes, strides, box, steps))
    return CUDA_ERROR_INVALID_VALUE;
  *map = {};
  const cuuint64_t fields[] = {reinterpret_cast<uintptr_t>(memory),
                               sizes[0],
                               sizes[1],
                               sizes[2],
                               strides[0] / kBytesOfElement,
                               strides[1] / kBytesOfElement,
                               box[1]};
  for (size_t i = 0; i < std::size(fields); ++i) map->opaque[i] = fields[i];
  return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  static const std::map<std::string, void*> known = {
      {"cuInit", reinterpret_cast<void*>(&cuInit)},
      {"cuDeviceGet", reinterpret_cast<void*>(&cuDeviceGet)},
      {"cuDevicePrimaryCtxRetain", reinterpret_cast<void*>(&cuDevicePrimaryCtxRetain)},
      {"cuCtxPushCurrent", reinterpret_cast<void*>(&cuCtxPushCurrent)},
      {"cuCtxGetCurrent", reinterpret_cast<void*>(&cuCtxGetCurrent)},
      {"cuCtxPopCurrent", reinterpret_cast<void*>(&cuCtxPopCurrent)},
      {"cuStreamWaitValue32", reinterpret_cast<void*>(&cuStreamWaitValue32)},
      {"cuTensorMapEncodeTiled", reinterpret_cast<void*>(&cuTensorMapEncodeTiled)}};
  const auto at = known.find(name);
  *function = at == known.end() ? nullptr : at->second;
  *found = at == known.end() ? cudaDriverEntryPointSymbolNotFound : cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
