#include <algorithm>

#include "backend/normuon.hpp"
#include "base/checked.hpp"
#include "host/dtype_dispatch.hpp"
#include "host/host_ops.hpp"
#include "host/host_stream.hpp"
#include "host/isa.hpp"

namespace muonrt::host {

namespace {

/// Number of columns that are summed at a time. Their partial sums stay in the L1 cache.
constexpr int64_t kColumns = 64;

template <class T>
struct RowSquaresPass {
  static MUONRT_ALWAYS_INLINE float run(const T* __restrict row, int64_t n) {
    float chains[kNeuronChains] = {};
    int64_t i = 0;
    for (; i + kNeuronChains <= n; i += kNeuronChains) {
      for (int64_t c = 0; c < kNeuronChains; ++c) {
        const float x = to_f32(row[i + c]);
        chains[c] += x * x;
      }
    }
    for (int64_t c = 0; i + c < n; ++c) {
      const float x = to_f32(row[i + c]);
      chains[c] += x * x;
    }
    return fold_chains(chains);
  }
};

/// Adds the squares of a row to the partial sums of its columns.
template <class T>
struct AddSquaresPass {
  static MUONRT_ALWAYS_INLINE void run(const T* __restrict row, float* __restrict sums, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      const float x = to_f32(row[i]);
      sums[i] += x * x;
    }
  }
};

template <class T>
struct ScaleByOnePass {
  static MUONRT_ALWAYS_INLINE void run(T* __restrict row, float factor, int64_t n) {
    for (int64_t i = 0; i < n; ++i) row[i] = from_f32<T>(to_f32(row[i]) * factor);
  }
};
template <class T>
struct ScaleByEachPass {
  static MUONRT_ALWAYS_INLINE void run(T* __restrict row, const float* __restrict factors,
                                       int64_t n) {
    for (int64_t i = 0; i < n; ++i) row[i] = from_f32<T>(to_f32(row[i]) * factors[i]);
  }
};

template <class T>
void column_squares(Isa isa, const T* data, const MatrixBatch& m, int64_t begin, int64_t end,
                    float* sums) {
  for (int64_t col = begin; col < end; col += kColumns) {
    const int64_t n = std::min(kColumns, end - col);
    float chains[kNeuronChains][kColumns] = {};
    for (int64_t row = 0; row < m.rows; ++row)
      run_pass<AddSquaresPass<T>>(isa, data + row * m.ld + col, chains[row % kNeuronChains], n);
    for (int64_t c = 0; c < n; ++c) {
      float one[kNeuronChains];
      for (int k = 0; k < kNeuronChains; ++k) one[k] = chains[k][c];
      sums[col + c] = fold_chains(one);
    }
  }
}

/// Replaces the mean squares in `state.factors` with the factors of the neurons, and stages the
/// second moments.
void finish_factors(const NormuonState& state, int64_t length, float beta2) {
  double squares[kNeuronChains] = {}, scaled[kNeuronChains] = {};
  for (int64_t neuron = 0; neuron < state.neurons; ++neuron) {
    const float mean = state.factors[neuron];
    const float factor = neuron_factor(state, neuron, mean, beta2);
    state.factors[neuron] = factor;
    const double v = static_cast<double>(mean), f = static_cast<double>(factor);
    squares[neuron % kNeuronChains] += v;
    scaled[neuron % kNeuronChains] += v * f * f;
  }
  const float restore = matrix_factor(state, fold_chains(squares), fold_chains(scaled), length);
  for (int64_t neuron = 0; neuron < state.neurons; ++neuron) state.factors[neuron] *= restore;
}

}  // namespace

void HostOps::normuon_of(const MatrixBatch& matrix, const NormuonState& state, float beta2) {
  with_iterate(matrix.dtype, [&](auto element) {
    using T = decltype(element);
    T* const data = static_cast<T*>(matrix.data);
    const int64_t length = state.stored_rows ? matrix.cols : matrix.rows;
    spread_range(state.neurons, [&](int64_t begin, int64_t end) {
      if (state.stored_rows) {
        for (int64_t row = begin; row < end; ++row)
          state.factors[row] = run_pass<RowSquaresPass<T>>(
              isa_, static_cast<const T*>(data) + row * matrix.ld, matrix.cols);
      } else {
        column_squares<T>(isa_, data, matrix, begin, end, state.factors);
      }
      for (int64_t neuron = begin; neuron < end; ++neuron)
        state.factors[neuron] /= static_cast<float>(length);
    });
    finish_factors(state, length, beta2);
    spread_range(matrix.rows, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        T* const at = data + row * matrix.ld;
        if (state.stored_rows) {
          run_pass<ScaleByOnePass<T>>(isa_, at, state.factors[row], matrix.cols);
        } else {
          run_pass<ScaleByEachPass<T>>(isa_, at, static_cast<const float*>(state.factors),
                                       matrix.cols);
        }
      }
    });
  });
}

void HostOps::normuon(Stream& stream, const MatrixBatch& matrices,
                      std::span<const NormuonState> states, const StepTables& tables) {
  host_stream(stream).enqueue(Task([=, this] {
    MatrixBatch one = matrices;
    for (const NormuonState& state : states) {
      const bool moments = state.rule == NeuronRule::kNormuon;
      if (state.neurons > 0 && (!moments || tables.params[state.param].active))
        normuon_of(one, state, moments ? tables.groups[state.group].normuon_beta2 : 0.0f);
      one.data = static_cast<char*>(one.data) + one.stride * size_of(one.dtype);
    }
  }));
}

void HostOps::commit_normuon(Stream& stream, std::span<const NormuonState> states,
                             const ParamView* params, const CommitCondition& condition) {
  host_stream(stream).enqueue(Task([=] {
    if (!condition.passes()) return;
    for (const NormuonState& state : states)
      if (params[state.param].active) std::copy_n(state.staged, state.neurons, state.moments);
  }));
}

}  // namespace muonrt::host
