#pragma once

#include <cstdint>
#include <string>
#include <vector>

/// A fake cuBLASLt for the emulated GPU, in a shared library with the name of cuBLASLt. It computes
/// column-major products of f32, f16 and bf16, with f32 sums over sixteen terms at a time. A search
/// finds up to three algorithms, each of which is faster than the previous one. The library checks
/// the rules in cuBLASLt's manual (sizes, alignment, overlap, the current GPU, the address of the
/// scratch memory) and reports violations as errors.
#pragma GCC visibility push(default)
namespace fake_cublas {

/// The products that the library rejects. By default, it rejects none.
struct Refusals {
  bool shapes = false;      // no algorithm supports any shape
  bool candidates = false;  // shapes are supported, but no algorithm is found
  bool batches = false;     // no algorithm supports launches of several matrices
  int64_t most = 1 << 30;   // largest number of matrices in a launch
  bool launches = false;    // every product returns an error
  bool single = false;      // the first algorithm of a batch does not compute a single matrix
};
void refuse(const Refusals& refusals);

struct Launch {
  int64_t m, n, k, count;  // column-major
  bool transposed;         // whether the first operand is transposed
  int candidate;           // index of the algorithm among the algorithms that were found
};
/// Returns the number of launches since the last call.
std::vector<Launch> launches();
/// Returns the number of searches for algorithms so far.
int64_t searches();
/// The arguments of a search. asked() returns the arguments of all searches since its last call.
struct Asked {
  int64_t m, n, k, count, stride;  // column-major; `stride` is that of the result
  uint32_t reductions;  // the allowed ways to add the parts of a product whose depth is divided
};
std::vector<Asked> asked();
/// Returns the number of handles that were created so far.
int64_t handles();
/// Returns the number of other objects that exist.
int64_t alive();

}  // namespace fake_cublas
#pragma GCC visibility pop
