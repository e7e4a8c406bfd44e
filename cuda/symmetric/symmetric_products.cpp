#include "cuda/symmetric/symmetric_products.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "cuda/check.hpp"

namespace muonrt::cuda {

namespace {

int slices_in(const Product& p) { return slices_of(p.c.rows, p.a.cols); }

}  // namespace

SymmetricProducts::SymmetricProducts(Device& device, SymmetricProvider provider, int64_t partials)
    : device_(device), provider_(provider), most_partials_(partials) {
  MUONRT_CHECK_INTERNAL(provider_ == SymmetricProvider::kSm80, "no symmetric kernels of this kind");
  symmetric_sm80_prepare();
}

std::string SymmetricProducts::identity() const { return "symmetric sm_80 kernels 1"; }

void SymmetricProducts::reserve(int64_t n, int64_t k) {
  if (slices_of(n, k) == 1 || partials_.data() != nullptr) return;
  partials_ = Buffer(device_, most_partials_ * kPartialFloats * size_of(DType::kF32));
}

const SymmetricProducts::DeviceList& SymmetricProducts::list_of(std::span<const Product> products,
                                                                cudaStream_t stream) {
  ListKey key;
  for (const Product& p : products) key.first.push_back(shape_of(p));
  const auto found = lists_.find(key);
  if (found != lists_.end()) return found->second;
  const std::vector<TileJob> jobs = square_jobs(key.first);
  const auto bytes = static_cast<int64_t>(jobs.size() * sizeof(TileJob));
  DeviceList list{Buffer(device_, bytes), static_cast<int64_t>(jobs.size())};
  MUONRT_CUDA(cudaMemcpyAsync(list.memory.data(), jobs.data(), static_cast<size_t>(bytes),
                              cudaMemcpyHostToDevice, stream));
  MUONRT_CUDA(cudaStreamSynchronize(stream));
  return lists_.emplace(std::move(key), std::move(list)).first->second;
}

void SymmetricProducts::launch_group(std::span<const Product> products, cudaStream_t stream) {
  SymmetricArguments args = {};
  std::transform(products.begin(), products.end(), args.problems, problem_of);
  args.slices = slices_in(products[0]);
  if (args.slices > 1) reserve(products[0].c.rows, products[0].a.cols);
  args.partials = partials_.as<float>();
  const DeviceList& list = list_of(products, stream);
  const auto* jobs = static_cast<const TileJob*>(list.memory.data());
  const int64_t most = args.slices > 1 ? most_partials_ / args.slices * args.slices : list.jobs;
  for (int64_t first = 0; first < list.jobs; first += most) {
    args.jobs = jobs + first;
    symmetric_sm80(args, products[0].a.dtype, std::min(most, list.jobs - first), stream);
  }
}

void SymmetricProducts::multiply(std::span<const Product> products, cudaStream_t stream) {
  for (size_t begin = 0; begin < products.size();) {
    size_t end = begin + 1;
    while (end < products.size() && end - begin < kProblems &&
           slices_in(products[end]) == slices_in(products[begin]) &&
           products[end].a.dtype == products[begin].a.dtype)
      ++end;
    launch_group(products.subspan(begin, end - begin), stream);
    begin = end;
  }
}

}  // namespace muonrt::cuda
