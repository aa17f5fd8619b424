// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include <dovetail/data/dataset.hpp>
#include <dovetail/data/idx.hpp>

namespace dovetail {

/// Grey images with a class each: kept as bytes, handed out as floats [n, 1, height, width] with mean 0 and deviation 1
/// over the training images, and labels as int64 [n].
class ImageDataset {
 public:
  /// @param images  bytes [N, height, width]
  /// @param labels  bytes [N], each below `classes`
  /// @throws Error(data) when they do not belong together; `source` is named in the message
  ImageDataset(torch::Tensor images, torch::Tensor labels, int classes, float mean, float deviation,
               const std::string& source)
      : images_(std::move(images)), labels_(std::move(labels)) {
    if (images_.size(0) != labels_.size(0)) {
      throw Error(ExitCode::data, "the files of " + source +
                                      " do not belong together: " + std::to_string(images_.size(0)) + " images and " +
                                      std::to_string(labels_.size(0)) + " labels.");
    }
    const uint8_t* label = labels_.const_data_ptr<uint8_t>();
    for (int64_t i = 0; i < labels_.size(0); ++i) {
      if (label[i] < classes) continue;
      throw Error(ExitCode::data, "label " + std::to_string(i) + " of " + source + " is " + std::to_string(label[i]) +
                                      ", expected less than " + std::to_string(classes) + ".");
    }
    for (size_t byte = 0; byte < value_.size(); ++byte)
      value_[byte] = (static_cast<float>(byte) / 255.0f - mean) / deviation;
  }

  [[nodiscard]] int64_t size() const { return images_.size(0); }

  void fetch(std::span<const int64_t> indices, Batch& out) const {
    const auto n = static_cast<int64_t>(indices.size());
    const int64_t pixels = images_.size(1) * images_.size(2);
    detail::shape_as(out.data, {n, 1, images_.size(1), images_.size(2)}, torch::kFloat);
    detail::shape_as(out.target, {n}, torch::kLong);
    const uint8_t* image = images_.const_data_ptr<uint8_t>();
    const uint8_t* label = labels_.const_data_ptr<uint8_t>();
    auto* to = out.data.mutable_data_ptr<float>();
    auto* to_label = out.target.mutable_data_ptr<int64_t>();
    for (const int64_t index : indices) {
      const uint8_t* from = image + index * pixels;
      for (int64_t i = 0; i < pixels; ++i) to[i] = value_[from[i]];
      to += pixels;
      *to_label++ = label[index];
    }
  }

 private:
  torch::Tensor images_, labels_;
  std::array<float, 256> value_{};  // what each byte stands for
};

/// Fashion-MNIST (Xiao, Rasul and Vollgraf 2017): 60,000 training and 10,000 test images, 28 x 28, of ten kinds of
/// clothes; the test images serve for validation. Read once, when first asked for.
class FashionMNIST {
 public:
  /// The four files are looked for in `folder`, else in $DOVETAIL_FASHION_MNIST, else where Debian's package
  /// dataset-fashion-mnist puts them; compressed or not.
  /// @throws Error(arguments) for an empty name
  explicit FashionMNIST(std::string folder = default_folder()) : folder_(std::move(folder)) {
    if (folder_.empty())
      throw Error(ExitCode::arguments,
                  "the name of Fashion-MNIST's folder is empty: give the folder of its four files.");
  }

  /// @throws Error(data) when files are missing, damaged, or do not belong together
  [[nodiscard]] const ImageDataset& train_data() const { return read(train_, "train"); }
  /// @throws Error(data) as train_data
  [[nodiscard]] const ImageDataset& validation_data() const { return read(validation_, "t10k"); }

  [[nodiscard]] static std::string default_folder() {
    const char* folder = std::getenv("DOVETAIL_FASHION_MNIST");
    return folder != nullptr && *folder != '\0' ? folder : "/usr/share/datasets/fashion-mnist";
  }

 private:
  const ImageDataset& read(std::shared_ptr<const ImageDataset>& known, const std::string& part) const {
    if (!known) {
      torch::Tensor images = read_idx(path_of(part + "-images-idx3-ubyte"), 3);
      torch::Tensor labels = read_idx(path_of(part + "-labels-idx1-ubyte"), 1);
      if (images.size(1) != 28 || images.size(2) != 28) {
        throw Error(ExitCode::data, "the images of " + folder_ + "/" + part + " are " +
                                        detail::shape_in_words({images.size(1), images.size(2)}) +
                                        ", expected 28 x 28.");
      }
      // Mean and deviation of the training pixels, scaled to [0, 1].
      known = std::make_shared<ImageDataset>(std::move(images), std::move(labels), 10, 0.2860f, 0.3530f,
                                             folder_ + "/" + part);
    }
    return *known;
  }

  [[nodiscard]] std::string path_of(const std::string& name) const {
    for (const char* ending : {".gz", ""}) {
      std::string path = folder_ + "/" + name + ending;
      if (::access(path.c_str(), F_OK) == 0) return path;
    }
    throw Error(ExitCode::data, "the data file " + folder_ + "/" + name +
                                    ".gz is missing; install it with `apt-get install dataset-fashion-mnist`, or set "
                                    "DOVETAIL_FASHION_MNIST to the folder that has it.");
  }

  std::string folder_;
  mutable std::shared_ptr<const ImageDataset> train_, validation_;
};

}  // namespace dovetail
