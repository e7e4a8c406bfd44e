#include "cuda/symmetric/symmetric_products.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "cuda/device/check.hpp"
#include "cuda/device/guard.hpp"
#include "cuda/symmetric/ring.hpp"

namespace muonrt::cuda {

namespace {

template <class T>
Buffer on_device(Device& device, const std::vector<T>& list, cudaStream_t stream) {
  const size_t bytes = list.size() * sizeof(T);
  Buffer memory(device, static_cast<int64_t>(bytes));
  if (bytes > 0)
    MUONRT_CUDA(cudaMemcpyAsync(memory.data(), list.data(), bytes, cudaMemcpyHostToDevice, stream));
  return memory;
}

}  // namespace

SymmetricProducts::SymmetricProducts(Device& device, int sms, const Sm90Tuning& tuning,
                                     bool leaves_sms)
    : device_(device), blocks_(std::max(2, sms / 2 * 2)), tuning_(tuning), leaves_sms_(leaves_sms) {
  symmetric_sm90_prepare();
  symmetric_sm90_small_prepare();
}

std::string SymmetricProducts::identity() const {
  const std::string kernels = "symmetric sm_90a kernels 2";
  const std::string sliced =
      tuning_.slices == 0 ? kernels : cat(kernels, ", ", tuning_.slices, " slices");
  return tuning_.dense ? sliced + ", dense" : sliced;
}

bool SymmetricProducts::takes(const Product& p) const {
  return symmetric_takes(p) || (tuning_.dense && dense_takes(p));
}

int SymmetricProducts::slices_in(const Product& p) const {
  return p.symmetric ? slices_of(p.c.rows, p.a.cols, tuning_.slices) : 1;
}

SymmetricProducts::DeviceList SymmetricProducts::make_list(std::span<const SymmetricShape> shapes,
                                                           cudaStream_t stream) {
  const RelaxedCapture relaxed;
  JobList list = mixed_jobs(shapes, blocks_, tuning_);
  const bool dense = shapes[0].cols > 0;
  Tiles tiles = dense ? Tiles::kLarge : tuning_.tiles.value_or(tiles_of(shapes, list, blocks_));
  if (tiles == Tiles::kMedium && shapes[0].slices > 1) tiles = Tiles::kLarge;
  if (tiles == Tiles::kMedium) list = medium_jobs(shapes, blocks_, tuning_.raster);
  if (!persistent(tiles)) list = {small_jobs(shapes, tiles, tuning_.raster), {}};
  const auto is_pair = [](const TileJob& job) { return job.kind == JobKind::kPair; };
  const bool pairs = std::any_of(list.jobs.begin(), list.jobs.end(), is_pair);
  std::vector<uint32_t> taken;
  if (tuning_.counter && tiles == Tiles::kLarge && !pairs && !dense && shapes[0].slices == 1) {
    list.jobs = in_turn(list);
    taken = {0, 0};
  }
  DeviceList made{on_device(device_, list.jobs, stream),
                  std::ssize(list.jobs),
                  on_device(device_, list.first, stream),
                  tiles,
                  pairs,
                  on_device(device_, taken, stream)};
  MUONRT_CUDA(cudaStreamSynchronize(stream));  // the lists on the host are destroyed next
  return made;
}

const SymmetricProducts::DeviceList& SymmetricProducts::list_of(std::span<const Product> products,
                                                                cudaStream_t stream) {
  std::vector<SymmetricShape> shapes;
  for (const Product& p : products) {
    shapes.push_back(shape_of(p));
    shapes.back().slices = slices_in(p);
  }
  const auto found = lists_.find(shapes);
  if (found != lists_.end()) return found->second;
  DeviceList made = make_list(shapes, stream);
  return lists_.emplace(std::move(shapes), std::move(made)).first->second;
}

void SymmetricProducts::launch_large(std::span<const Product> products, const DeviceList& list,
                                     cudaStream_t stream) {
  constexpr int kStoredRows = 64;
  const bool medium = list.tiles == Tiles::kMedium, dense = !products[0].symmetric;
  Sm90Arguments args = {};
  for (size_t i = 0; i < products.size(); ++i) {
    const Product& p = products[i];
    args.problems[i] = problem_of(p, slices_in(p));
    args.a[i] = make_tensor_map(p.a, kCell);
    args.b[i] = make_tensor_map(p.b, medium || dense ? kCell / 2 : kCell);
    args.c[i] = make_tensor_map(p.c, kStoredRows);
    if (args.problems[i].d) args.d[i] = make_tensor_map(p.d, kCell);
  }
  args.jobs = list.jobs.as<TileJob>();
  args.first = list.first.as<int32_t>();
  args.skew = std::min(tuning_.skew, kRingStages - 1);
  for (const Product& p : products) args.skew = std::min(args.skew, stages_of(p.a.cols) - 1);
  args.count = static_cast<int32_t>(list.count);
  args.taken = list.taken.as<uint32_t>();
  const Sm90Jobs jobs = args.taken                   ? Sm90Jobs::kCounted
                        : dense                      ? Sm90Jobs::kDense
                        : medium                     ? Sm90Jobs::kMedium
                        : slices_in(products[0]) > 1 ? Sm90Jobs::kSliced
                                                     : Sm90Jobs::kMixed;
  symmetric_sm90(args, products[0].a.dtype,
                 {jobs, blocks_, list.pairs || leaves_sms_, tuning_.early}, stream);
}

void SymmetricProducts::launch_small(std::span<const Product> products, const DeviceList& list,
                                     cudaStream_t stream) {
  Sm90SmallArguments args = {};
  for (size_t i = 0; i < products.size(); ++i) {
    const Product& p = products[i];
    args.problems[i] = problem_of(p, slices_in(p));
    args.a[i] = make_tensor_map(p.a, kSmallCell);
    args.b[i] = make_tensor_map(p.b, kSmallCell);
    if (args.problems[i].d) args.d[i] = make_tensor_map(p.d, kSmallCell);
  }
  args.jobs = list.jobs.as<TileJob>();
  symmetric_sm90_small(args, products[0].a.dtype, slices_in(products[0]), list.count, tuning_.early,
                       stream);
}

void SymmetricProducts::launch(std::span<const Product> products, cudaStream_t stream) {
  const DeviceList& list = list_of(products, stream);
  if (list.count == 0) return;
  if (persistent(list.tiles)) {
    launch_large(products, list, stream);
  } else {
    launch_small(products, list, stream);
  }
}

bool SymmetricProducts::can_share_launch(const Product& a, const Product& b) const {
  return a.a.dtype == b.a.dtype && a.symmetric == b.symmetric && slices_in(a) == slices_in(b);
}

void SymmetricProducts::multiply(std::span<const Product> products, cudaStream_t stream) {
  std::vector<Product> list(products.begin(), products.end());
  for (auto begin = list.begin(); begin != list.end();) {
    const auto fits = [&, first = *begin](const Product& p) { return can_share_launch(first, p); };
    const auto alike = std::stable_partition(begin, list.end(), fits) - begin;
    const std::span<const Product> group(&*begin,
                                         std::min<size_t>(static_cast<size_t>(alike), kProblems));
    launch(group, stream);
    begin += std::ssize(group);
  }
}

}  // namespace muonrt::cuda
