#include "state/shard_file.hpp"

#include <algorithm>

#include "base/crc32c.hpp"
#include "base/json.hpp"
#include "base/json_value.hpp"
#include "state/digits.hpp"

namespace muonrt {

namespace {

constexpr const char* kShardFileFormat = "muonrt state 1";
constexpr size_t kSumDigits = 8;  // digits of one checksum

/// A tensor in the file. It contains the elements of a shard that this rank writes.
struct Share {
  const StateShard* shard;
  Extent extent;
  int64_t bytes() const { return extent.numel() * bytes_of(shard->tensor); }
};

std::vector<Share> shares_of(const std::vector<StateShard>& shards) {
  std::vector<Share> out;
  for (const StateShard& shard : shards)
    if (shard.write_begin < shard.write_end)
      out.push_back({&shard, shard.extent.part(shard.write_begin, shard.write_end)});
  // Tensors with larger elements come first, so each tensor begins at a multiple of its element
  // size.
  std::stable_sort(out.begin(), out.end(), [](const Share& a, const Share& b) {
    return bytes_of(a.shard->tensor) > bytes_of(b.shard->tensor);
  });
  return out;
}

/// Returns the shape of the tensor in the file: the sides of the extent if it is a box, and
/// otherwise one dimension.
std::vector<int64_t> shape_of(const Extent& extent) {
  if (extent.numel() != extent.product()) return {extent.numel()};
  std::vector<int64_t> out;
  for (const Runs& runs : extent.runs) out.push_back(length(runs));
  return out;
}

void write_extent(JsonWriter& json, const Extent& extent) {
  json.object([&] {
    json.field("shape", extent.shape);
    json.key("runs");
    json.list([&] {
      for (const Runs& runs : extent.runs) {
        json.list([&] {
          for (const Run& run : runs) {
            json.value(run.begin);
            json.value(run.end);
          }
        });
      }
    });
    json.field("range", std::vector<int64_t>{extent.begin, extent.end});
  });
}

/// @param where  Returns the position for an error message.
template <class Where>
std::vector<int64_t> numbers(const JsonValue* value, const Where& where) {
  const auto* list = value ? value->as<JsonValue::List>() : nullptr;
  MUONRT_REQUIRE(list, Status::kCorrupt, where(), ": its shard has no list of numbers");
  std::vector<int64_t> out;
  for (const JsonValue& item : *list) {
    const auto* number = item.as<int64_t>();
    MUONRT_REQUIRE(number && *number >= 0, Status::kCorrupt, where(),
                   ": its shard has a value that is not an integer from 0 to 2^63 - 1");
    out.push_back(*number);
  }
  return out;
}

template <class Where>
Extent read_extent(const JsonValue& json, const Where& where) {
  Extent out;
  out.shape = numbers(json.find("shape"), where);
  const JsonValue* const runs = json.find("runs");
  const auto* const lists = runs ? runs->as<JsonValue::List>() : nullptr;
  MUONRT_REQUIRE(lists, Status::kCorrupt, where(), ": its shard has no runs");
  for (const JsonValue& list : *lists) {
    const auto bounds = numbers(&list, where);
    MUONRT_REQUIRE(bounds.size() % 2 == 0, Status::kCorrupt, where(), ": a run has no end");
    Runs& to = out.runs.emplace_back();
    for (size_t i = 0; i < bounds.size(); i += 2) to.push_back({bounds[i], bounds[i + 1]});
  }
  const auto range = numbers(json.find("range"), where);
  MUONRT_REQUIRE(range.size() == 2, Status::kCorrupt, where(), ": its shard has no range");
  out.begin = range[0];
  out.end = range[1];
  return out;
}

/// Writes data to the file in blocks.
class BlockWriter {
 public:
  BlockWriter(OutFile& file, int64_t at) : file_(file), at_(at), block_(kBlockBytes) {}
  /// Returns the free part of the current block.
  std::span<unsigned char> room() { return std::span(block_).subspan(used_); }
  void take(size_t bytes) {
    used_ += bytes;
    if (used_ == block_.size()) flush();
  }
  void flush() {
    if (used_ == 0) return;
    sums_.add(std::span(block_).first(used_));
    file_.write(block_.data(), static_cast<int64_t>(used_), at_);
    at_ += static_cast<int64_t>(used_);
    used_ = 0;
  }
  std::string sums() const { return sums_.digits(); }

 private:
  OutFile& file_;
  int64_t at_;
  std::vector<unsigned char> block_;
  size_t used_ = 0;
  BlockSums sums_;
};

}  // namespace

ManifestFile write_shard_file(
    Files& files, const std::string& folder, const std::string& name,
    const std::vector<StateShard>& shards, DeviceCopy& copy,
    const std::function<void(const StateShard&, int64_t, std::span<const unsigned char>)>& see) {
  const std::vector<Share> shares = shares_of(shards);
  if (shares.empty()) return {name};
  const std::string path = folder + "/" + name;
  std::vector<TensorEntry> entries;
  JsonWriter table;
  int64_t data = 0;
  table.object([&] {
    for (const Share& share : shares) {
      const StateTensor& t = share.shard->tensor;
      const std::string head = cat(kind_name(t.kind), "/", entries.size());
      entries.push_back(
          {cat(head, "/", t.name), t.dtype, shape_of(share.extent), 0, share.bytes()});
      table.key(head);
      write_extent(table, share.extent);
      data += share.bytes();
    }
  });
  std::map<std::string, std::string> metadata = {
      {"format", kShardFileFormat}, {"pieces", table.take()}, {"crc32c", BlockSums::zeros(data)}};
  const auto front = static_cast<int64_t>(tensor_header(entries, metadata, path).size());
  OutFile file(files, path + ".tmp");
  BlockWriter out(file, front);
  for (const Share& share : shares) {
    const char* from = static_cast<const char*>(share.shard->data) +
                       share.shard->write_begin * bytes_of(share.shard->tensor);
    for (int64_t left = share.bytes(); left > 0;) {
      const auto room = out.room();
      const auto count = std::min(static_cast<size_t>(left), room.size());
      copy.read(room.data(), from, static_cast<int64_t>(count));
      see(*share.shard,
          (from - static_cast<const char*>(share.shard->data)) / bytes_of(share.shard->tensor),
          room.first(count));
      out.take(count);
      from += count;
      left -= static_cast<int64_t>(count);
    }
  }
  out.flush();
  metadata["crc32c"] = out.sums();
  const std::string header = tensor_header(entries, metadata, path);
  file.write(header.data(), front, 0);
  file.finish();
  file.publish(path);
  return {name, front + data, crc32c(header.data(), header.size())};
}

ShardFile::ShardFile(const std::string& folder, const ManifestFile& record)
    : file_(folder + "/" + record.name) {
  const std::string& path = file_.path();
  const auto require = [&](bool good, const auto&... problem) {
    MUONRT_REQUIRE(good, Status::kCorrupt, path, ": ", problem..., "; load another checkpoint");
  };
  const int64_t bytes = std::ssize(file_.header()) + std::ssize(file_.data());
  require(bytes == record.bytes, "the file has ", bytes, " bytes, but the manifest has ",
          record.bytes);
  const uint32_t sum = crc32c(file_.header().data(), file_.header().size());
  require(sum == record.header_crc32c, "the checksum of the header is ", digits_of(sum, kSumDigits),
          ", but the manifest has ", digits_of(record.header_crc32c, kSumDigits));
  const auto& metadata = file_.table().metadata;
  const auto text = [&](const char* key) {
    const auto found = metadata.find(key);
    require(found != metadata.end(), "the metadata has no ", key);
    return found->second;
  };
  require(text("format") == kShardFileFormat, "its format is ", in_quotes(text("format")), ", not ",
          kShardFileFormat);
  blocks_.emplace(file_);
  // Parses one shard at a time, because a number in a JsonValue needs 28 times the memory of its
  // text.
  constexpr JsonLimits kLimits{5, 20000000, 1 << 22};
  std::map<std::string, Extent> extents;
  parse_json_parts(text("pieces"), path + ": pieces", kLimits,
                   {.member = [&](const std::string& key, JsonValue value) {
                     extents[key] =
                         read_extent(value, [&] { return path + ": shard " + in_quotes(key); });
                   }});
  for (const TensorEntry& entry : file_.table().entries) {
    const size_t word = entry.name.find('/');
    const size_t number = word == entry.name.npos ? word : entry.name.find('/', word + 1);
    require(number != entry.name.npos, "the name of tensor ", in_quotes(entry.name),
            " is not KIND/NUMBER/NAME");
    auto extent = extents.extract(entry.name.substr(0, number));
    require(!extent.empty(), "tensor ", in_quotes(entry.name), " has no shard");
    shards_.push_back({entry.name.substr(number + 1), kind_from_name(entry.name.substr(0, word)),
                       std::move(extent.mapped()), &entry});
    require(shards_.back().extent.numel() == entry.elements(), "tensor ", in_quotes(entry.name),
            " does not have the size of its shard");
  }
}

std::span<const unsigned char> ShardFile::elements(const StoredShard& shard, int64_t first,
                                                   int64_t count) {
  const int64_t size = element_bytes(shard.entry->dtype);
  const int64_t begin = shard.entry->begin + first * size, end = begin + count * size;
  blocks_->check(begin, end, shard.entry->name);
  return file_.data().subspan(static_cast<size_t>(begin), static_cast<size_t>(count * size));
}

}  // namespace muonrt
