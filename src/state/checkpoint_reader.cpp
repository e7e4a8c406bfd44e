#include "state/checkpoint_reader.hpp"

#include <algorithm>
#include <cstring>

#include "base/checked.hpp"
#include "state/conversions.hpp"
#include "state/digits.hpp"
#include "state/element_hash.hpp"
#include "state/moments.hpp"
#include "state/publisher.hpp"

namespace muonrt {

namespace {

// Maximum number of tensors that are listed for a damaged block.
constexpr size_t kMaxNamedTensors = 16;
constexpr int64_t kResidentBlocks = 32;
constexpr auto kMasterKind = static_cast<int32_t>(StateKind::kMaster);
constexpr auto kNormuonKind = static_cast<int32_t>(StateKind::kNormuon);

/// Returns the dtype of a parameter that is stored only as its master weights, or null for any
/// other parameter.
const std::string* dtype_in_masters(const ManifestParam& p) {
  static const std::string kBf16 = "BF16", kF16 = "F16";
  if (!p.state.contains(kind_name(kMasterKind))) return nullptr;
  return p.dtype == name_of(DType::kBF16)  ? &kBf16
         : p.dtype == name_of(DType::kF16) ? &kF16
                                           : nullptr;
}

std::string tensor_text(const std::string& param, int32_t kind) {
  return cat(kind_name(kind), " of param ", in_quotes(param));
}

/// Returns true if the error is a problem of the checkpoint's files.
bool is_file_problem(const Error& e) {
  return e.status() == Status::kIo || e.status() == Status::kCorrupt;
}

}  // namespace

std::vector<std::string> list_manifests(const std::string& folder) {
  std::vector<std::string> out;
  bool newest = false;
  for (std::string& name : Files().list(folder)) {
    newest |= name == kManifestName;
    if (is_older_manifest(name)) out.push_back(std::move(name));
  }
  std::sort(out.rbegin(), out.rend());
  if (newest) out.insert(out.begin(), kManifestName);
  return out;
}

std::string CheckpointReader::Tensor::text() const { return tensor_text(param->name, kind); }

CheckpointReader::CheckpointReader(std::string folder, const std::string& manifest)
    : folder_(std::move(folder)),
      path_(manifest_path(folder_, manifest)),
      text_(MappedFile(path_).text()),
      manifest_(parse_manifest(text_, path_)) {
  for (const ManifestParam& p : manifest_.params) {
    MUONRT_REQUIRE(first_.emplace(p.name, tensors_.size()).second, Status::kCorrupt, path_,
                   ": param ", in_quotes(p.name), " is listed twice; load another checkpoint");
    for (int32_t kind = StateTensor::kParam; *kind_name(kind); ++kind) {
      const auto state = p.state.find(kind_name(kind));
      const bool saved = state != p.state.end();
      if (saved) {
        tensors_.push_back({&p, kind, &state->second, kind});
      } else if (kind == StateTensor::kParam) {
        const std::string* const dtype = manifest_.with_params ? dtype_in_masters(p) : nullptr;
        tensors_.push_back({&p, kind, dtype, dtype ? kMasterKind : kind});
      }
    }
  }
  data_.resize(tensors_.size());
  for (const ManifestFile& file : manifest_.files)
    MUONRT_REQUIRE(!__builtin_add_overflow(bytes_, file.bytes, &bytes_), Status::kCorrupt, path_,
                   ": its files have more than 2^63 - 1 bytes; load another checkpoint");
}

const CheckpointReader::Tensor& CheckpointReader::at(int64_t index) const {
  MUONRT_REQUIRE(index >= 0 && index < std::ssize(tensors_), kInvalidArg, path_, ": index is ",
                 index, ", but there are ", tensors_.size(), " tensors; use a smaller index");
  return tensors_[static_cast<size_t>(index)];
}

int64_t CheckpointReader::find(const std::string& param, int32_t kind) const {
  const auto found = first_.find(param);
  MUONRT_REQUIRE(found != first_.end(), kInvalidArg, path_, ": there is no param ",
                 in_quotes(param), "; list the tensors to see all names");
  for (size_t i = found->second; i < tensors_.size() && tensors_[i].param->name == param; ++i)
    if (tensors_[i].kind == kind) return static_cast<int64_t>(i);
  throw Error(kInvalidArg, cat(path_, ": param ", in_quotes(param), " has no ", kind_name(kind),
                               "; list the tensors to see its state"));
}

bool CheckpointReader::has_data(const Tensor& tensor) const {
  const std::vector<int64_t>& shape = tensor.param->shape;
  return tensor.dtype ||
         (manifest_.with_params && std::find(shape.begin(), shape.end(), 0) != shape.end());
}

StateSources& CheckpointReader::sources() {
  if (sources_) return *sources_;
  file_errors_.clear();
  std::vector<std::unique_ptr<ShardFile>> files;
  for (const ManifestFile& record : manifest_.files) {
    try {
      files.push_back(std::make_unique<ShardFile>(folder_, record));
    } catch (const Error& e) {
      if (!is_file_problem(e)) throw;
      file_errors_.push_back(e);
    }
  }
  return sources_.emplace(std::move(files), manifest_);
}

/// Returns the number of elements of the whole tensor, after checking that the open files contain
/// at least this many.
int64_t CheckpointReader::numel_of(const Tensor& tensor) {
  StateSources& from = sources();
  const std::string& param = tensor.param->name;
  // The number of neurons is stored only with the shards, so at least one shard must be in an open
  // file.
  if (!file_errors_.empty() && tensor.kind == kNormuonKind && from.shards(param, kNormuonKind) == 0)
    throw file_errors_.front();
  try {
    return from.numel_in_files(param, tensor.stored, cat(path_, ": ", tensor.text()));
  } catch (const Error& e) {
    // Elements are missing because a file could not be opened, so the error of that file is thrown
    // instead.
    if (!file_errors_.empty() && e.status() == Status::kCorrupt) throw file_errors_.front();
    throw;
  }
}

const CheckpointReader::Data& CheckpointReader::data_of(int64_t index) {
  const Tensor& tensor = at(index);
  std::optional<Data>& out = data_[static_cast<size_t>(index)];
  if (out) return *out;
  if (!tensor.dtype) return out.emplace(Data{tensor.param->shape});
  const int64_t numel = numel_of(tensor);
  return out.emplace(Data{tensor.kind == kNormuonKind ? std::vector{numel} : tensor.param->shape,
                          numel * element_bytes(*tensor.dtype),
                          sources().shards(tensor.param->name, tensor.stored)});
}

void CheckpointReader::read(int64_t index, std::span<unsigned char> to) {
  const Tensor& tensor = at(index);
  MUONRT_REQUIRE(has_data(tensor), kInvalidArg, path_, ": ", tensor.text(),
                 " was not saved, only its hash; save without without_params");
  const int64_t bytes = data_of(index).bytes;
  MUONRT_REQUIRE(std::ssize(to) == bytes, kInvalidArg, path_, ": ", tensor.text(), " has ", bytes,
                 " bytes, but bytes is ", to.size(), "; pass a buffer of the tensor's size");
  if (bytes == 0) return;
  const int64_t size = element_bytes(*tensor.dtype);
  read_values(tensor, bytes / size, [&](int64_t element, std::span<const unsigned char> values) {
    std::memcpy(to.data() + element * size, values.data(), values.size());
  });
}

template <class Take>
void CheckpointReader::read_values(const Tensor& tensor, int64_t numel, const Take& take) {
  sources().read(tensor.param->name, tensor.stored, whole_extent(numel),
                 cat(path_, ": ", tensor.text()),
                 [&](int64_t, int64_t element, std::span<const unsigned char> values) {
                   if (tensor.stored == tensor.kind) return take(element, values);
                   take(element, std::span<const unsigned char>(rounded(values, *tensor.dtype)));
                 });
}

void CheckpointReader::add_problem(const Error& problem) {
  if (!first_problem_) first_problem_ = problem;
  ++n_problems_;
  problems_ += cat(problems_.empty() ? "" : "\n", problem.message());
}

template <class Work>
void CheckpointReader::attempt(const Work& work) {
  try {
    work();
  } catch (const Error& e) {
    if (!is_file_problem(e)) throw;
    add_problem(e);
  }
}

void CheckpointReader::verify() {
  problems_.clear();
  first_problem_.reset();
  n_problems_ = 0;
  damaged_.clear();
  sources_.reset();
  attempt([&] { check_files(); });
  if (!first_problem_) return;
  throw first_problem_->with_context(
      "", n_problems_ == 1 ? "" : cat(" (and ", n_problems_ - 1, " more problems)"));
}

void CheckpointReader::check_files() {
  StateSources& from = sources();
  for (const Error& e : file_errors_) add_problem(e);
  for (const auto& file : from.files()) {
    for (int64_t b = 0; b < file->blocks(); ++b) {
      const std::string problem = file->problem_of(b);
      if (!problem.empty())
        add_problem(
            {Status::kCorrupt, cat(file->path(), ": ", problem, ": ", tensors_in(*file, b))});
      if (b % kResidentBlocks == 0) file->release_pages();
    }
  }
  // Without this check, all elements of a missing file would also be reported.
  if (!file_errors_.empty()) return;
  for (const Tensor& tensor : tensors_)
    if (tensor.dtype && !damaged_.contains({tensor.param->name, tensor.stored}))
      attempt([&] { check_values(tensor); });
}

/// Returns the tensors in a damaged block, with the range of elements of each, and records that
/// these tensors are damaged.
std::string CheckpointReader::tensors_in(const ShardFile& file, int64_t block) {
  const int64_t begin = block * kBlockBytes, end = begin + kBlockBytes;
  std::string out;
  size_t named = 0;
  for (const StoredShard& shard : file.shards()) {
    const TensorEntry& entry = *shard.entry;
    if (entry.end <= begin || entry.begin >= end) continue;
    damaged_.insert({shard.param, shard.kind});
    if (++named > kMaxNamedTensors) continue;
    const int64_t size = element_bytes(entry.dtype);
    const int64_t first = std::max<int64_t>(0, begin - entry.begin) / size;
    const int64_t last = ceil_div(std::min(end, entry.end) - entry.begin, size);
    const auto part = shard.extent.part(first, last).stretches();
    if (part.empty()) continue;
    out += cat(out.empty() ? "" : "; ", tensor_text(shard.param, shard.kind), ", elements ",
               part.front().element, " to ", part.back().element + part.back().count);
  }
  if (named > kMaxNamedTensors) out += cat("; and ", named - kMaxNamedTensors, " more");
  return out;
}

/// Checks that each element is stored exactly once, that moments are valid, and that the hash of a
/// parameter is the one in the manifest.
void CheckpointReader::check_values(const Tensor& tensor) {
  StateSources& from = sources();
  const ManifestParam& p = *tensor.param;
  bool good = true;
  uint64_t hash = 0;
  read_values(
      tensor, from.numel(p.name, tensor.stored),
      [&](int64_t element, std::span<const unsigned char> values) {
        if (tensor.kind == StateTensor::kParam)
          hash += hash_elements(p.name, element, values, element_bytes(*tensor.dtype));
        const auto bad = bad_moment(tensor.kind, *tensor.dtype, manifest_.step, values);
        if (!bad || !good) return;
        good = false;  // only the first problem of a tensor is reported
        const int64_t at = element + bad->index;
        add_problem({Status::kCorrupt, cat(from.where(p.name, tensor.kind, at), ": ", tensor.text(),
                                           ": element ", at, " ", bad->problem)});
      });
  MUONRT_REQUIRE(tensor.kind != StateTensor::kParam || hash == p.hash, Status::kCorrupt, path_,
                 ": ", tensor.text(), ": its elements have the hash ", digits_of(hash, 16),
                 ", but the manifest has ", digits_of(p.hash, 16));
}

}  // namespace muonrt
