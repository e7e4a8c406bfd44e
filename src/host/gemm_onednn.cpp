#include <algorithm>
#include <dnnl.hpp>
#include <utility>

#include "base/error.hpp"
#include "host/gemm_tile.hpp"

// Functions of libgomp, which oneDNN uses unless it was built without threads. They are declared
// here because the compiler's omp.h may belong to a different OpenMP runtime than the library's.
extern "C" int omp_get_max_threads(void);
extern "C" void omp_set_num_threads(int);

namespace muonrt::host {

namespace {

using Matmul = dnnl::matmul;
using dnnl::memory;

constexpr bool kOpenMp = DNNL_CPU_THREADING_RUNTIME == DNNL_RUNTIME_OMP;

/// Limits OpenMP to one thread for the calling thread. The destructor restores the setting.
/// Primitives must also be created while such an object exists, because their blocking depends on
/// the number of threads.
class OneThread {
 public:
  OneThread() {
    if constexpr (kOpenMp) {
      before_ = omp_get_max_threads();
      if (before_ != 1) omp_set_num_threads(1);
    }
  }
  ~OneThread() {
    if constexpr (kOpenMp) {
      if (before_ != 1) omp_set_num_threads(before_);
    }
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_ = 1;
};

/// Calls `body` and converts an exception of the library to an Error.
template <class F>
auto with_reason(const char* what, const PanelShape& shape, F&& body) {
  try {
    const OneThread one_thread;
    return body();
  } catch (const dnnl::error& error) {
    throw Error(Status::kInternal,
                cat("oneDNN failed to ", what, " a matrix product (", error.what(), "; panel ",
                    shape.depth, " x ", shape.cols, ", ", name_of(shape.dtype),
                    "); report it, or build with MUONRT_ONEDNN=OFF"));
  }
}

/// Returns attributes by which the caller provides scratch memory, and which prevent process-wide
/// settings from relaxing the arithmetic.
template <class Attributes = dnnl::primitive_attr>
Attributes attributes() {
  Attributes made;
  made.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  made.set_fpmath_mode(dnnl::fpmath_mode::strict);
  if constexpr (requires { made.set_deterministic(true); }) made.set_deterministic(true);
  return made;
}

/// Describes a product. Needed for oneDNN 2.x, which has operation descriptors; oneDNN 3.x has
/// none.
template <class Product>
auto describe(const dnnl::engine& engine, const memory::desc& a, const memory::desc& b,
              const memory::desc& c) {
  using Descriptor = typename Product::primitive_desc;
  if constexpr (requires { typename Product::desc; }) {
    return Descriptor(typename Product::desc(a, b, c), attributes(), engine);
  } else {
    return Descriptor(engine, a, b, c, attributes());
  }
}

memory::data_type library_type(DType dtype) {
  return dtype == DType::kBF16 ? memory::data_type::bf16 : memory::data_type::f32;
}

class OnednnPanel final : public PanelProduct {
 public:
  OnednnPanel(const dnnl::engine& engine, const PanelShape& shape)
      : engine_(engine), shape_(shape) {
    // The packed format is selected for the first height, and the second height uses the same
    // format.
    packed_ =
        memory::desc({shape.depth, shape.cols}, library_type(shape.dtype), memory::format_tag::any);
    heights_[0] = make_height(shape.rows[0]);
    heights_[1] = make_height(shape.rows[1]);
    const memory::dims strides =
        shape.transpose_b ? memory::dims{1, shape.b_ld} : memory::dims{shape.b_ld, 1};
    stored_ = memory::desc({shape.depth, shape.cols}, library_type(shape.dtype), strides);
    pack_to_ = packed_;
    move_pairs();
    const dnnl::reorder::primitive_desc packing(engine, stored_, engine, pack_to_, attributes());
    pack_scratch_ = packing.scratchpad_desc();
    pack_ = dnnl::reorder(packing);
  }

  int64_t packed_bytes() const override { return static_cast<int64_t>(packed_.get_size()); }

  int64_t scratch_bytes() const override {
    return static_cast<int64_t>(std::max({pack_scratch_.get_size(), heights_[0].scratch.get_size(),
                                          heights_[1].scratch.get_size()}));
  }

  void pack(const void* b, void* packed, void* scratch) const override {
    with_reason("pack", shape_, [&] {
      pack_.execute(dnnl::stream(engine_), {{DNNL_ARG_FROM, view(stored_, b)},
                                            {DNNL_ARG_TO, view(pack_to_, packed)},
                                            {DNNL_ARG_SCRATCHPAD, view(pack_scratch_, scratch)}});
    });
  }

  void run(int64_t rows, const void* a, const void* packed, int64_t, float* c,
           void* scratch) const override {
    const Height& height = heights_[rows == heights_[0].rows ? 0 : 1];
    with_reason("run", shape_, [&] {
      height.product.execute(dnnl::stream(engine_),
                             {{DNNL_ARG_SRC, view(height.a, a)},
                              {DNNL_ARG_WEIGHTS, view(packed_, packed)},
                              {DNNL_ARG_DST, view(height.c, c)},
                              {DNNL_ARG_SCRATCHPAD, view(height.scratch, scratch)}});
    });
  }

 private:
  struct Height {
    int64_t rows = 0;
    memory::desc a, c, scratch;
    Matmul product;
  };

  Height make_height(int64_t rows) {
    const memory::data_type type = library_type(shape_.dtype);
    Height made;
    made.rows = rows;
    made.a = memory::desc({rows, shape_.depth}, type, memory::format_tag::ab);
    made.c = memory::desc({rows, shape_.cols}, memory::data_type::f32, memory::format_tag::ab);
    const auto described = describe<Matmul>(engine_, made.a, packed_, made.c);
    packed_ = described.weights_desc();
    made.scratch = described.scratchpad_desc();
    made.product = Matmul(described);
    return made;
  }

  /// Decides whether packing can move pairs of bf16 values as one f32, which makes packing three
  /// times as fast. This is possible if two values that are consecutive in the depth are adjacent
  /// in both the stored B and the packed B.
  void move_pairs() {
    using Tag = memory::format_tag;
    if (shape_.dtype != DType::kBF16 || !shape_.transpose_b) return;
    if (shape_.depth % 2 != 0 || shape_.b_ld % 2 != 0) return;
    const memory::dims pairs{shape_.depth / 2, shape_.cols};
    for (const auto& [narrow, wide] :
         {std::pair{Tag::BA16a16b2a, Tag::BA16a16b}, std::pair{Tag::BA16a32b2a, Tag::BA16a32b},
          std::pair{Tag::BA16a48b2a, Tag::BA16a48b}, std::pair{Tag::BA16a64b2a, Tag::BA16a64b}}) {
      if (packed_ != memory::desc({shape_.depth, shape_.cols}, memory::data_type::bf16, narrow))
        continue;
      stored_ = memory::desc(pairs, memory::data_type::f32, memory::dims{1, shape_.b_ld / 2});
      pack_to_ = memory::desc(pairs, memory::data_type::f32, wide);
    }
  }

  /// The library takes non-const pointers even for memory that it only reads.
  memory view(const memory::desc& desc, const void* data) const {
    return memory(desc, engine_, const_cast<void*>(data));
  }

  dnnl::engine engine_;
  PanelShape shape_;
  Height heights_[2];
  memory::desc packed_;            // a panel in the form that the product reads
  memory::desc stored_, pack_to_;  // B and the panel in the forms that packing uses
  memory::desc pack_scratch_;
  dnnl::reorder pack_;
};

class OnednnKernel final : public TileKernel {
 public:
  const char* name() const override { return "onednn"; }

  std::string identity() const override {
    const dnnl_version_t* version = dnnl_version();
    std::string text = cat("onednn ", version->major, ".", version->minor, ".", version->patch,
                           " isa ", static_cast<int>(dnnl::get_effective_cpu_isa()));
    // Environment variables can select shorter vectors than the instruction set allows.
    const int hints = static_cast<int>(dnnl::get_cpu_isa_hints());
    if (hints != 0) text += cat(" hints ", hints);
    return text;
  }

  bool supports_bf16() const override { return bf16_; }
  bool has_matrix_unit() const override { return amx_; }

  std::unique_ptr<const PanelProduct> panel(const PanelShape& shape) const override {
    return with_reason("make", shape,
                       [&] { return std::make_unique<const OnednnPanel>(engine_, shape); });
  }

  /// Returns true if f32 products work, and detects support for bf16.
  bool probe() {
    // A library that was built for a different threading runtime cannot be limited to one thread.
    const unsigned runtime = dnnl_version()->cpu_runtime;
    if (runtime != DNNL_RUNTIME_OMP && runtime != DNNL_RUNTIME_SEQ) return false;
    // With older instruction sets, bf16 products are emulated or not supported.
    const int native = static_cast<int>(dnnl::cpu_isa::avx512_core_bf16);
    const int isa = static_cast<int>(dnnl::get_effective_cpu_isa());
    bf16_ = (isa & native) == native && makes(DType::kBF16);
    const int amx = static_cast<int>(dnnl::cpu_isa::avx512_core_amx);
    amx_ = bf16_ && (isa & amx) == amx;
    return makes(DType::kF32);
  }

 private:
  bool makes(DType dtype) const {
    try {
      panel({.depth = 64,
             .cols = 64,
             .rows = {64, 64},
             .dtype = dtype,
             .b_ld = 64,
             .transpose_b = false});
      return true;
    } catch (const Error&) {
      return false;
    }
  }

  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  bool bf16_ = false, amx_ = false;
};

std::unique_ptr<OnednnKernel> make_kernel() {
  try {
    auto kernel = std::make_unique<OnednnKernel>();
    if (kernel->probe()) return kernel;
  } catch (const dnnl::error&) {
    // There is no CPU engine, so the portable kernel is used instead.
  }
  return nullptr;
}

}  // namespace

const TileKernel* onednn_kernel() {
  // never destroyed, because worker threads may still run when the process destroys static objects
  static const OnednnKernel* const kernel = make_kernel().release();
  return kernel;
}

}  // namespace muonrt::host
