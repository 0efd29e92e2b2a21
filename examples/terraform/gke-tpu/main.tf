# A GKE cluster for examples/kubernetes/tpu-v6e-multi-slice.yaml: four slices of 16 TPU v6e chips on spot machines, a file
# system that all pods may write to, and a bucket that the trainer's service account may use. Not applied by us: its
# shape is compared with the class tpu-v6e and the job.
#   terraform init && terraform apply -var project=PROJECT -var bucket=YOUR-BUCKET
# docs/gke.md has the next steps, and the same by gcloud.

terraform {
  required_version = ">= 1.5"
  required_providers {
    google = {
      source  = "hashicorp/google"
      version = ">= 6.0"
    }
  }
}

variable "project" {
  type        = string
  description = "The project's ID."
}

variable "bucket" {
  type        = string
  description = "The bucket's name, as the job has it."
}

variable "region" {
  type    = string
  default = "us-east5"
}

variable "zone" {
  type        = string
  default     = "us-east5-b"
  description = "Where the TPUs are; all slices of a job in one zone."
}

variable "slices" {
  type        = number
  default     = 4
  description = "spec.hardware.slices of the job."
}

variable "spot" {
  type        = bool
  default     = true
  description = "Spot machines; only a job with their nodeSelector and toleration runs there."
}

provider "google" {
  project = var.project
  region  = var.region
}

data "google_project" "this" {}

resource "google_container_cluster" "training" {
  name                     = "training"
  location                 = var.region
  initial_node_count       = 1
  remove_default_node_pool = true
  deletion_protection      = false
  datapath_provider        = "ADVANCED_DATAPATH" # enforces the NetworkPolicies of the jobs

  release_channel {
    channel = "REGULAR"
  }

  workload_identity_config {
    workload_pool = "${var.project}.svc.id.goog"
  }

  addons_config {
    gcp_filestore_csi_driver_config {
      enabled = true
    }
  }
}

# For the operator and what GKE itself runs: one node in each zone of the region.
resource "google_container_node_pool" "system" {
  name       = "system"
  cluster    = google_container_cluster.training.name
  location   = var.region
  node_count = 1

  node_config {
    machine_type = "e2-standard-4"
    oauth_scopes = ["https://www.googleapis.com/auth/cloud-platform"]

    workload_metadata_config {
      mode = "GKE_METADATA"
    }
  }
}

# A slice is a pool of its own, made as a whole: 16 chips are 4 machines of 4 chips.
resource "google_container_node_pool" "slice" {
  count          = var.slices
  name           = "v6e-4x4-${count.index}"
  cluster        = google_container_cluster.training.name
  location       = var.region
  node_locations = [var.zone]
  node_count     = 4

  node_config {
    machine_type = "ct6e-standard-4t"
    spot         = var.spot
    oauth_scopes = ["https://www.googleapis.com/auth/cloud-platform"]

    workload_metadata_config {
      mode = "GKE_METADATA"
    }
  }

  placement_policy {
    type         = "COMPACT"
    tpu_topology = "4x4"
  }
}

resource "google_storage_bucket" "runs" {
  name                        = var.bucket
  location                    = var.region
  uniform_bucket_level_access = true
}

# The Kubernetes service account `trainer` of the namespace `training`, without a key.
resource "google_storage_bucket_iam_member" "trainer" {
  bucket = google_storage_bucket.runs.name
  role   = "roles/storage.objectUser"
  member = "principal://iam.googleapis.com/projects/${data.google_project.this.number}/locations/global/workloadIdentityPools/${var.project}.svc.id.goog/subject/ns/training/sa/trainer"
}

output "credentials" {
  value       = "gcloud container clusters get-credentials ${google_container_cluster.training.name} --location ${var.region} --project ${var.project}"
  description = "Points kubectl and helm at the cluster."
}
