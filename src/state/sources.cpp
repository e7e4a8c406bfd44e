#include "state/sources.hpp"

#include <algorithm>

namespace muonrt {

namespace {

constexpr int64_t kGivenOut = 1 << 18;  // maximum number of elements in one call to `take`
constexpr int64_t kResident = 1 << 25;  // maximum bytes of the files that remain in memory
constexpr auto kNeurons = static_cast<int32_t>(StateKind::kNormuon);

int64_t product(const std::vector<int64_t>& shape, std::string_view param) {
  int64_t out = 1;
  for (const int64_t size : shape)
    MUONRT_REQUIRE(!__builtin_mul_overflow(out, size, &out), Status::kCorrupt, "param ",
                   in_quotes(param), ": a tensor of shape ", shape,
                   " has more than 2^63 - 1 elements; load another checkpoint");
  return out;
}

}  // namespace

StateSources::StateSources(const Manifest& manifest) {
  params_.reserve(manifest.params.size());
  for (const ManifestParam& p : manifest.params) params_[p.name] = &p;
}

StateSources::StateSources(std::string folder, const Manifest& manifest, int rank, int world)
    : StateSources(manifest) {
  folder_ = std::move(folder);
  // If the mesh has not changed since the checkpoint was saved, one file contains everything that a
  // rank needs. Otherwise most of the data is in files with nearby numbers.
  const int64_t own = std::ssize(manifest.files) * rank / world;
  const auto distance = [&](const ManifestFile& record) {
    const int64_t from = &record - manifest.files.data() - own;
    return from >= 0 ? 2 * from : -2 * from + 1;
  };
  for (const ManifestFile& record : manifest.files) unopened_.push_back(&record);
  std::sort(unopened_.begin(), unopened_.end(), [&](const ManifestFile* a, const ManifestFile* b) {
    return distance(*a) > distance(*b);
  });
}

StateSources::StateSources(std::vector<std::unique_ptr<ShardFile>> files, const Manifest& manifest)
    : StateSources(manifest) {
  for (auto& file : files) add(std::move(file));
}

void StateSources::add(std::unique_ptr<ShardFile> opened) {
  ShardFile& file = *files_.emplace_back(std::move(opened));
  for (const StoredShard& shard : file.shards()) {
    const auto where = [&] { return cat(file.path(), ": tensor ", in_quotes(shard.entry->name)); };
    const auto param = params_.find(shard.param);
    const auto* const state = param == params_.end() ? nullptr : &param->second->state;
    const auto dtype = state ? state->find(kind_name(shard.kind)) : decltype(state->end()){};
    MUONRT_REQUIRE(state && dtype != state->end() && dtype->second == shard.entry->dtype,
                   Status::kCorrupt, where(),
                   ": the manifest does not have this state with this dtype; load another "
                   "checkpoint");
    Tensor& tensor = at(shard.param, shard.kind);
    // The first shard determines the number of neurons.
    if (shard.kind == kNeurons && tensor.numel == 0)
      tensor.numel = product(shard.extent.shape, shard.param);
    const char* const problem = problem_of(shard.extent, tensor.numel);
    MUONRT_REQUIRE(!problem, Status::kCorrupt, where(), ": ", problem, "; load another checkpoint");
    tensor.sources.push_back({&file, &shard});
  }
}

void StateSources::open_next() {
  const ManifestFile& record = *unopened_.back();
  unopened_.pop_back();
  add(std::make_unique<ShardFile>(folder_, record));
}

StateSources::Tensor& StateSources::at(const std::string& param, int32_t kind) {
  const auto found = tensors_.find({param, kind});
  if (found != tensors_.end()) return found->second;
  const auto saved = params_.find(param);
  const bool known = kind != kNeurons && saved != params_.end();
  return tensors_[{param, kind}] = Tensor{known ? product(saved->second->shape, param) : 0};
}

const StateSources::Tensor* StateSources::find(const std::string& param, int32_t kind) const {
  const auto found = tensors_.find({param, kind});
  return found == tensors_.end() ? nullptr : &found->second;
}

int64_t StateSources::numel(const std::string& param, int32_t kind) {
  const Tensor& tensor = at(param, kind);
  while (kind == kNeurons && tensor.numel == 0 && !unopened_.empty()) open_next();
  return tensor.numel;
}

int64_t StateSources::numel_in_files(const std::string& param, int32_t kind,
                                     const std::string& what) {
  const int64_t needed = numel(param, kind);
  int64_t found = 0;
  for (size_t i = 0; found < needed; ++i) {
    while (i == at(param, kind).sources.size() && !unopened_.empty()) open_next();
    const std::vector<Source>& sources = at(param, kind).sources;
    MUONRT_REQUIRE(i < sources.size(), Status::kCorrupt, what, ": the files have only ", found,
                   " of ", needed, " elements; load another checkpoint");
    // Does not overflow, because the files have at most 2^63 bytes.
    found += sources[i].shard->extent.numel();
  }
  return needed;
}

int64_t StateSources::shards(const std::string& param, int32_t kind) const {
  const Tensor* const tensor = find(param, kind);
  return tensor ? std::ssize(tensor->sources) : 0;
}

std::string StateSources::where(const std::string& param, int32_t kind, int64_t element) const {
  std::string out;
  const Tensor* const tensor = find(param, kind);
  if (!tensor) return "no file";
  const Extent one = whole_extent(tensor->numel).part(element, element + 1);
  for (const Source& source : tensor->sources)
    for (const Overlap& o : overlaps(one, source.shard->extent))
      out += cat(out.empty() ? "" : " and ", source.file->path(), ": byte ",
                 source.file->byte_of(*source.shard, o.second));
  return out.empty() ? "no file" : out;
}

void StateSources::forget_checks() {
  for (const auto& file : files_) file->forget_checks();
}

void StateSources::take_from(const Source& source, const Extent& extent, const Take& take,
                             Taken& taken) {
  const int64_t size = element_bytes(source.shard->entry->dtype);
  for (const Overlap& o : overlaps(extent, source.shard->extent)) {
    taken.stretches.emplace_back(o.first, o.first + o.count);
    taken.count += o.count;
    for (int64_t done = 0; done < o.count; done += kGivenOut) {
      const int64_t count = std::min(kGivenOut, o.count - done);
      const auto bytes = source.file->elements(*source.shard, o.second + done, count);
      take(o.first + done, o.element + done, bytes.first(static_cast<size_t>(count * size)));
      resident_ += std::max(count * size, int64_t{4096});
    }
  }
  if (resident_ < kResident) return;
  for (const auto& file : files_) file->release_pages();
  resident_ = 0;
}

void StateSources::read(const std::string& param, int32_t kind, const Extent& extent,
                        const std::string& what, const Take& take) {
  Taken taken;
  const std::vector<Source>& sources = at(param, kind).sources;
  for (size_t i = 0;; ++i) {
    while (i == sources.size() && taken.count < extent.numel() && !unopened_.empty()) open_next();
    if (i == sources.size()) break;
    take_from(sources[i], extent, take, taken);
  }
  std::sort(taken.stretches.begin(), taken.stretches.end());
  int64_t next = 0;
  const auto require = [&](bool good, int64_t local, const char* problem) {
    if (good) return;
    const int64_t element = extent.element_at(local);
    throw Error(Status::kCorrupt, cat(what, ": element ", element, problem, " (it is in ",
                                      where(param, kind, element), "); load another checkpoint"));
  };
  for (const auto& [first, end] : taken.stretches) {
    require(first >= next, first, " is stored twice");
    require(first <= next, next, " is missing");
    next = end;
  }
  require(next == extent.numel(), next, " is missing");
}

}  // namespace muonrt
