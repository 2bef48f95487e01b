import sfumato.ApiClient;
import sfumato.ApiException;
import sfumato.JSON;
import sfumato.api.JobsApi;
import sfumato.model.Job;
import sfumato.model.Problem;

/** Prints the jobs of a service: {@code SFUMATO_URL=... SFUMATO_KEY=... mvn compile exec:java}. */
public final class Example {
    public static void main(String[] arguments) {
        ApiClient client = new ApiClient();
        client.setBasePath(System.getenv("SFUMATO_URL"));
        client.setBearerToken(System.getenv("SFUMATO_KEY"));
        try {
            for (Job job : new JobsApi(client).listJobs(null, null, null, null, null, null, null, null).getItems()) {
                System.out.println(job.getId() + " " + job.getState());
            }
        } catch (ApiException failure) {
            Problem problem = JSON.getGson().fromJson(failure.getResponseBody(), Problem.class);
            System.out.println(problem.getCode() + ": " + problem.getDetail());
        }
        System.exit(0); // the client's pool of connections keeps threads
    }
}
