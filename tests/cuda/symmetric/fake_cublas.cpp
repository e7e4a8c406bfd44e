#include "cuda/symmetric/fake_cublas.hpp"

#include <cublasLt.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "control.hpp"
#include "cuda/symmetric/fake_cublas_product.hpp"

struct FakeCublasHandle {
  int device;
};
struct FakeCublasDesc {
  cublasComputeType_t compute;
  bool transposed = false;
};
struct FakeCublasPreference {
  uint64_t workspace = 0;
  uint32_t reductions = ~0u;
  uint32_t alignment[4] = {256, 256, 256, 256};  // alignments of A, B, C and D
};

namespace {

constexpr size_t kWorkspace = 1 << 16;  // bytes that every product writes
constexpr uintptr_t kWorkspaceAlignment = 256;
constexpr int kCandidates = 3;            // maximum number of algorithms that a search returns
constexpr int64_t kSlowerNs = 1'000'000;  // each algorithm takes this much longer than the next one

/// The search that found an algorithm. Each search has a unique number.
struct Search {
  int64_t m, n, k, a_ld, b_ld, c_ld, d_ld;
  cudaDataType_t type;
  bool transposed;
  uint32_t reductions, alignment;
  int candidate;
  bool of_batch;
  auto operator<=>(const Search&) const = default;
};

struct State {
  std::mutex mutex;
  fake_cublas::Refusals refusals;
  std::vector<fake_cublas::Launch> launches;
  std::vector<fake_cublas::Asked> asked;
  std::vector<Search> found;                  // indexed by the first word of an algorithm
  std::set<std::pair<int, uint64_t>> loaded;  // kernels that were loaded, by device
  int64_t searches = 0, alive = 0, handles = 0;
  std::string why;  // text of the last error
};
State& state() {
  static State* const instance = new State();
  return *instance;
}

cublasStatus_t fails(cublasStatus_t status, const std::string& why) {
  const std::lock_guard lock(state().mutex);
  state().why = why;
  return status;
}
cublasStatus_t invalid(const std::string& why) { return fails(CUBLAS_STATUS_INVALID_VALUE, why); }

fake_cublas::Refusals refusals() {
  const std::lock_guard lock(state().mutex);
  return state().refusals;
}

template <class Object, class... Fields>
cublasStatus_t make(Object** out, Fields... fields) {
  const std::lock_guard lock(state().mutex);
  ++state().alive;
  *out = new Object{fields...};
  return CUBLAS_STATUS_SUCCESS;
}
template <class Object>
cublasStatus_t give_back(Object* object) {
  const std::lock_guard lock(state().mutex);
  --state().alive;
  delete object;
  return CUBLAS_STATUS_SUCCESS;
}

/// Stores an attribute. Each attribute has one size.
template <class T>
cublasStatus_t take(T& field, const void* value, size_t bytes) {
  if (bytes != sizeof field) return invalid("an attribute has another size");
  std::memcpy(&field, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

/// Returns the reason why the layouts are not valid for a product, or nothing if they are valid.
std::optional<std::string> misfit(const Operands& o, const FakeCublasDesc& desc) {
  const auto one = [&](const FakeCublasLayout& l, int64_t rows, int64_t cols) {
    return l.rows == rows && l.cols == cols && l.ld >= l.rows && l.type == o.d.type &&
           l.count == o.d.count && l.count >= 1;
  };
  if (!one(o.a, o.transposed ? o.k() : o.m(), o.transposed ? o.m() : o.k()) ||
      !one(o.b, o.k(), o.n()) || !one(o.c, o.m(), o.n()) || !one(o.d, o.m(), o.n()))
    return "sizes, types or counts do not match";
  if (o.m() < 1 || o.n() < 1 || o.k() < 1) return "an empty product";
  if (desc.compute == CUBLAS_COMPUTE_32F_PEDANTIC && o.d.type != CUDA_R_32F)
    return "a pedantic product has half precision";
  return std::nullopt;
}

/// Returns the search for these operands.
/// @param like  provides the values that the operands do not determine.
Search search_of(const Operands& o, Search like) {
  like.m = o.m();
  like.n = o.n();
  like.k = o.k();
  like.a_ld = o.a.ld;
  like.b_ld = o.b.ld;
  like.c_ld = o.c.ld;
  like.d_ld = o.d.ld;
  like.type = o.d.type;
  like.transposed = o.transposed;
  return like;
}
std::optional<Search> search_behind(const cublasLtMatmulAlgo_t& algo) {
  const std::lock_guard lock(state().mutex);
  const uint64_t number = algo.data[0];
  if (number == 0 || number > state().found.size()) return std::nullopt;
  return state().found[number - 1];
}
bool is_for(const cublasLtMatmulAlgo_t& algo, const Operands& o) {
  const auto found = search_behind(algo);
  return found && *found == search_of(o, *found);
}
/// Returns whether the algorithm can compute this number of matrices in one launch.
bool takes(const cublasLtMatmulAlgo_t& algo, int32_t count) {
  const fake_cublas::Refusals refused = refusals();
  if (count > 1) return !refused.batches && count <= refused.most;
  const auto found = search_behind(algo);
  return !(refused.single && found && found->of_batch && found->candidate == 0);
}

int64_t size_of_type(cudaDataType_t type) { return type == CUDA_R_32F ? 4 : 2; }

/// Returns the number of elements of a batch, from its first to its last element.
int64_t extent(const FakeCublasLayout& l) {
  return (l.count - 1) * l.stride + (l.cols - 1) * l.ld + l.rows;
}
bool overlap(const void* x, const FakeCublasLayout& of_x, const void* y,
             const FakeCublasLayout& of_y) {
  const auto first = reinterpret_cast<uintptr_t>(x), second = reinterpret_cast<uintptr_t>(y);
  return first < second + static_cast<uintptr_t>(extent(of_y) * size_of_type(of_y.type)) &&
         second < first + static_cast<uintptr_t>(extent(of_x) * size_of_type(of_x.type));
}
bool same(const FakeCublasLayout& x, const FakeCublasLayout& y) {
  return x.ld == y.ld && (x.count == 1 || x.stride == y.stride);
}

}  // namespace

namespace fake_cublas {

void refuse(const Refusals& refusals) {
  const std::lock_guard lock(state().mutex);
  state().refusals = refusals;
}
std::vector<Launch> launches() {
  const std::lock_guard lock(state().mutex);
  return std::exchange(state().launches, {});
}
std::vector<Asked> asked() {
  const std::lock_guard lock(state().mutex);
  return std::exchange(state().asked, {});
}
int64_t searches() {
  const std::lock_guard lock(state().mutex);
  return state().searches;
}
int64_t handles() {
  const std::lock_guard lock(state().mutex);
  return state().handles;
}
int64_t alive() {
  const std::lock_guard lock(state().mutex);
  return state().alive;
}

}  // namespace fake_cublas

size_t cublasLtGetVersion() { return 130000; }
const char* cublasLtGetStatusString(cublasStatus_t) {
  thread_local std::string text;
  const std::lock_guard lock(state().mutex);
  text = state().why;
  return text.c_str();
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  if (!emulator::library_may_load())
    return invalid("a handle is created while streams are captured");
  *handle = new FakeCublasHandle{emulator::library_device()};
  const std::lock_guard lock(state().mutex);
  ++state().handles;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  return scale == CUDA_R_32F ? make(desc, compute) : invalid("factors are not f32");
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) { return give_back(desc); }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t, const void* value,
                                              size_t bytes) {
  int32_t operation = 0;
  const cublasStatus_t status = take(operation, value, bytes);
  desc->transposed = operation == CUBLAS_OP_T;
  return status;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type,
                                          uint64_t rows, uint64_t cols, int64_t ld) {
  return make(layout, type, static_cast<int64_t>(rows), static_cast<int64_t>(cols), ld);
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return give_back(layout);
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t which,
                                                const void* value, size_t bytes) {
  if (which == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) return take(layout->count, value, bytes);
  if (which == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET)
    return take(layout->stride, value, bytes);
  return invalid("the fake does not support this attribute of layouts");
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return make(preference);
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return give_back(preference);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t which,
                                                    const void* value, size_t bytes) {
  switch (which) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return take(preference->workspace, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return take(preference->reductions, value, bytes);
    default:
      return take(preference->alignment[which - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value,
                  bytes);
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* count) {
  *count = 0;
  if (!emulator::library_may_load()) return invalid("a search during a capture");
  {
    const std::lock_guard lock(state().mutex);
    ++state().searches;
  }
  const Operands o{*a, *b, *c, *d, desc->transposed};
  {
    const std::lock_guard lock(state().mutex);
    state().asked.push_back({o.m(), o.n(), o.k(), o.d.count, o.d.stride, preference->reductions});
  }
  if (const auto why = misfit(o, *desc)) return invalid(*why);
  if (wanted < 1 || handle->device != emulator::library_device())
    return invalid("the search is for another GPU");
  if (refusals().shapes) return fails(CUBLAS_STATUS_NOT_SUPPORTED, "the shape is rejected");
  if (refusals().candidates || preference->workspace < kWorkspace) return CUBLAS_STATUS_SUCCESS;
  const uint32_t alignment = *std::min_element(preference->alignment, preference->alignment + 4);
  if (o.d.count > 1 && (refusals().batches || o.d.count > refusals().most))
    return CUBLAS_STATUS_SUCCESS;
  const std::lock_guard lock(state().mutex);
  for (; *count < std::min(wanted, kCandidates); ++*count) {
    Search search = {};
    search.reductions = preference->reductions;
    search.alignment = alignment;
    search.candidate = *count;
    search.of_batch = o.d.count > 1;
    state().found.push_back(search_of(o, search));
    results[*count] = {{{state().found.size()}}, kWorkspace, CUBLAS_STATUS_SUCCESS, 1.0f, {}};
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCapGetAttribute(const cublasLtMatmulAlgo_t* algo,
                                                 cublasLtMatmulAlgoCapAttributes_t which,
                                                 void* value, size_t bytes, size_t* written) {
  int32_t batches = refusals().batches ? 0 : 1;
  if (!search_behind(*algo) || which != CUBLASLT_ALGO_CAP_STRIDED_BATCH_SUPPORT ||
      bytes != sizeof batches)
    return invalid("no such capability");
  std::memcpy(value, &batches, bytes);
  *written = bytes;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algo,
                                       cublasLtMatmulHeuristicResult_t* result) {
  if (!emulator::library_may_load()) return invalid("a check during a capture");
  const Operands o{*a, *b, *c, *d, desc->transposed};
  if (const auto why = misfit(o, *desc)) return invalid(*why);
  if (!is_for(*algo, o) || handle->device != emulator::library_device())
    return invalid("the algorithm is for another product");
  if (!takes(*algo, o.d.count))
    return fails(CUBLAS_STATUS_NOT_SUPPORTED, "too many matrices in a launch");
  *result = {*algo, kWorkspace, CUBLAS_STATUS_SUCCESS, 1.0f, {}};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo,
                              void* workspace, size_t workspace_bytes, cudaStream_t stream) {
  if (refusals().launches) return fails(CUBLAS_STATUS_EXECUTION_FAILED, "the launch is rejected");
  const Operands o{*a_layout, *b_layout, *c_layout, *d_layout, desc->transposed};
  if (const auto why = misfit(o, *desc)) return invalid(*why);
  if (!is_for(*algo, o)) return invalid("the algorithm is for another product");
  if (!takes(*algo, o.d.count))
    return fails(CUBLAS_STATUS_NOT_SUPPORTED, "too many matrices in a launch");
  if (handle->device != emulator::library_device())
    return fails(CUBLAS_STATUS_ARCH_MISMATCH, "the handle is for another GPU");
  for (const void* memory : {a, b, c, static_cast<const void*>(d)})
    if (!emulator::library_reaches(memory) ||
        reinterpret_cast<uintptr_t>(memory) % search_behind(*algo)->alignment != 0)
      return invalid("an operand is not reachable by this GPU, or less aligned than promised");
  const FakeCublasLayout& l = o.d;
  if (l.count > 1 && l.stride < (l.cols - 1) * l.ld + l.rows) return invalid("results overlap");
  if (overlap(a, o.a, d, o.d) || overlap(b, o.b, d, o.d) ||
      (overlap(c, o.c, d, o.d) && !(c == d && same(o.c, o.d))))
    return invalid("the result overlaps an operand");
  if (workspace_bytes < kWorkspace || !emulator::library_reaches(workspace) ||
      reinterpret_cast<uintptr_t>(workspace) % kWorkspaceAlignment != 0)
    return invalid("scratch memory is too small, not on this GPU or not aligned to 256 bytes");
  const Search found = *search_behind(*algo);
  const int64_t ns = (kCandidates - found.candidate) * kSlowerNs;
  bool first = false;
  {
    const std::lock_guard lock(state().mutex);
    state().launches.push_back({o.m(), o.n(), o.k(), o.d.count, o.transposed, found.candidate});
    first = state().loaded.insert({handle->device, algo->data[0]}).second;
  }
  if (first && !emulator::library_may_load()) return invalid("a first launch during a capture");
  const cudaError_t enqueued = emulator::enqueue_library_kernel(
      stream, [=, x = *static_cast<const float*>(alpha), y = *static_cast<const float*>(beta)] {
        std::memset(workspace, 0xff, kWorkspace);
        multiply(o, x, a, b, y, c, d);
        emulator::library_takes(ns);
      });
  return enqueued == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                                 : fails(CUBLAS_STATUS_EXECUTION_FAILED, "the stream is rejected");
}
